# SPDX-License-Identifier: Apache-2.0
"""Compiles C++ against the installed PyTorch, once, into a cache.

PyTorch's C++ interface changes with every minor version and a wheel cannot know which one its user
has, so what is written against it is compiled on the user's machine at first use. Only a C++
compiler is needed: no ninja, no setuptools. The result's file name holds a hash of everything it
depends on (sources, flags, compiler, versions of PyTorch and Python), so an outdated library is
never loaded; a file lock keeps processes from building the same library twice, and a library
appears under its name only when it is whole.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from baechi.progress import remark


class BuildError(RuntimeError):
    """A library could not be compiled; the message says what to install or shows the errors."""


def cache_folder() -> Path:
    """Return where compiled libraries are kept: ``$BAECHI_CACHE``, else the user's cache."""
    chosen = os.environ.get("BAECHI_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baechi"


def build(name: str, sources: Sequence[Path], flags: Sequence[str] = ()) -> Path:
    """Return the path of the shared library made of ``sources``, compiled now if it has to be.

    Headers beside the sources count as sources. The library is not loaded.
    """
    compiler = find_compiler()
    flags = [*common_flags(), *flags]
    digest = digest_of(sources, [*compiler, version_of(compiler), *flags])
    library = cache_folder() / f"{name}-{digest}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with locked(library.with_suffix(".lock")):
            if not library.exists():
                remark(f"compiling {name!r} against the installed PyTorch, once (a minute or two)")
                compile_library(library, compiler, sources, flags)
    except OSError as error:
        raise BuildError(f"{library.parent}: {error}; set BAECHI_CACHE to another folder") from None
    return library


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler, through ccache where that is installed."""
    for candidate in [os.environ.get("CXX"), "c++", "g++", "clang++"]:
        if candidate and shutil.which(candidate.split()[0]):
            ccache = shutil.which("ccache")
            return [*([ccache] if ccache else []), *candidate.split()]
    raise BuildError(
        "baechi compiles a small library against the installed PyTorch, which needs a C++ compiler"
        " with C++20, e.g. g++ >= 11 (Debian and Ubuntu: apt install g++; or set CXX)"
    )


def version_of(compiler: Sequence[str]) -> str:
    """Return what the compiler says about itself."""
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[0] if done.stdout else ""


def common_flags() -> list[str]:
    """Return the flags with which PyTorch's headers and libraries can be used."""
    include = Path(torch.__file__).parent / "include"
    return [
        "-std=c++20",
        "-O1",  # most of the time goes into PyTorch's own kernels
        "-fPIC",
        "-pthread",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        "-isystem",
        str(include),
        "-isystem",
        str(include / "torch/csrc/api/include"),
        "-isystem",
        sysconfig.get_path("include"),
    ]


def digest_of(sources: Sequence[Path], extra: Sequence[str]) -> str:
    """Hash everything that decides what the library is."""
    digest = hashlib.sha256()
    versions = [torch.__version__, torch.__file__, sys.version, platform.machine()]
    digest.update("\0".join([*versions, *extra]).encode())
    folders = sorted({source.parent for source in sources})
    headers = [header for folder in folders for header in sorted(folder.glob("*.h"))]
    for path in [*sources, *headers]:
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_library(
    library: Path, compiler: Sequence[str], sources: Sequence[Path], flags: Sequence[str]
) -> None:
    """Compile the sources, in no more parts than there are processors, and link them.

    Most of the time goes into PyTorch's headers, which the sources of a part read together; so the
    names in their anonymous namespaces differ. Two sources are compiled nearly as fast as one.
    """
    torch_libraries = Path(torch.__file__).parent / "lib"
    parts = min(len(os.sched_getaffinity(0)), -(-len(sources) // 3))
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects, commands = [], []
        for *others, last in (sources[i::parts] for i in range(parts)):
            objects.append(Path(folder) / f"{last.stem}.o")
            before = [word for source in others for word in ("-include", str(source))]
            commands.append([*compiler, *flags, *before, "-c", str(last), "-o", str(objects[-1])])
        with concurrent.futures.ThreadPoolExecutor(parts) as pool:
            list(pool.map(run, commands))
        whole = Path(folder) / library.name
        plain = [part for part in compiler if Path(part).name != "ccache"]
        linked = [f"-L{torch_libraries}", f"-Wl,-rpath,{torch_libraries}"]
        linked += ["-ltorch_cpu", "-ltorch", "-lc10", "-o", str(whole)]
        run([*plain, "-shared", "-pthread", *map(str, objects), *linked])
        whole.replace(library)


def run(command: Sequence[str]) -> None:
    """Run the compiler; what it printed is the error."""
    environment = {**os.environ, "CCACHE_NOHASHDIR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[:40])
        raise BuildError(f"this failed: {' '.join(command)}\n{said}")
