# SPDX-License-Identifier: Apache-2.0
"""Native code against the installed PyTorch: compiled once, kept in a cache, loaded.

>>> executor = load("executor", [folder / "executor.cc"], flags=["-O2"])  # doctest: +SKIP

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
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from baechi.progress import remark


class BuildError(RuntimeError):
    """A library could not be made or loaded; one line says why and what to do about it."""


@functools.cache
def library() -> Any:
    """Return the executor of programs and pinned memory; None where there is no compiler."""
    folder = Path(__file__).parent / "run" / "csrc"
    try:
        return load("baechi_executor", sorted(folder.glob("*.cc")), flags=["-O2"])
    except BuildError as error:
        remark(f"programs run in Python, slower: {error}")
        return None


_loaded: dict[tuple[str, Path], ModuleType] = {}


def load(name: str, sources: Sequence[Path], *, flags: Sequence[str] = ()) -> ModuleType:
    """Return the Python module made of ``sources``, compiled now if it has to be.

    One of them has ``PYBIND11_MODULE(NAME, m)`` with the same name; pybind11 comes with PyTorch.
    ``flags`` come after the common ones, so that ``-O2`` prevails. Loading twice gives one module.
    """
    library = build(name, sources, flags)
    if (name, library) not in _loaded:
        loader = ExtensionFileLoader(name, str(library))
        spec = importlib.util.spec_from_file_location(name, library, loader=loader)
        assert spec is not None  # a loader was given
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            raise BuildError(f"{name}: cannot load it ({error}); delete {library}") from None
        _loaded[name, library] = module
    return _loaded[name, library]


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
    for source in sources:
        if not source.is_file():
            raise BuildError(f"{name}: there is no {source}; install baechi again")
    compiler = find_compiler(name)
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
        reason = f"{library.parent}: {error}; set BAECHI_CACHE to a folder that can be written to"
        raise BuildError(f"{name}: {reason}") from None
    return library


def find_compiler(name: str) -> list[str]:
    """Return the command of the C++ compiler, through ccache where that is installed."""
    for candidate in [os.environ.get("CXX"), "c++", "g++", "clang++"]:
        if candidate and shutil.which(candidate.split()[0]):
            ccache = shutil.which("ccache")
            return [*([ccache] if ccache else []), *candidate.split()]
    raise BuildError(
        f"{name}: compiling it against the installed PyTorch needs a C++ compiler with C++20,"
        " such as g++ 11 or newer (Debian and Ubuntu: apt install g++; or set CXX)"
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
        "-DNDEBUG",  # as PyTorch was: some of its classes have other members without
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
        log = library.with_suffix(".log")
        with concurrent.futures.ThreadPoolExecutor(parts) as pool:
            list(pool.map(lambda command: run(command, log), commands))
        whole = Path(folder) / library.name
        plain = [part for part in compiler if Path(part).name != "ccache"]
        linked = [f"-L{torch_libraries}", f"-Wl,-rpath,{torch_libraries}"]
        linked += ["-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10", "-o", str(whole)]
        run([*plain, "-shared", "-pthread", *map(str, objects), *linked], log)
        whole.replace(library)
        log.unlink(missing_ok=True)


REASONS = ("error:", "undefined reference", "cannot find")  # in what compilers and linkers print


def run(command: Sequence[str], log: Path) -> None:
    """Run the compiler; its first error is the reason, and all that it printed goes to the log."""
    environment = {**os.environ, "CCACHE_NOHASHDIR": "1", "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return
    log.write_text(f"{' '.join(command)}\n\n{done.stderr}")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reasons = [line for line in lines if any(word in line for word in REASONS)]
    reason = [*reasons, *lines[-1:], "it printed nothing"][0]
    raise BuildError(
        f"{log.stem.rpartition('-')[0]}: the compiler stopped: {reason}; all that it printed is in"
        f" {log}; update baechi if PyTorch {torch.__version__} is newer, or set CXX to g++ >= 11"
    )
