# SPDX-License-Identifier: Apache-2.0
"""What ``baechi doctor`` prints: what is installed here, and whether it was tested together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from baechi import _core

if TYPE_CHECKING:
    from baechi.measured_links import Line

_MOST_LINKED = 4  # accelerators between which copies are timed, so that it takes seconds
_FEW_LINKS = 2


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found is not None:
            words = subprocess.run(
                [found, "--version"], capture_output=True, text=True, check=False
            )
            return words.stdout.split("\n", 1)[0] or found
    return "none: the PyTorch runtime and simulated devices need one (apt install g++)"


def _torch() -> str:
    version = _installed("torch")
    if version is None:
        return "not installed: pip install baechi[torch]"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from baechi.torch.versions import NEWEST, OLDEST
    except ImportError as error:  # it is refused
        return f"{version}: {error}"
    tested = version.split("+")[0] in (OLDEST, NEWEST)
    return f"{version}, " + ("tested" if tested else f"not tested: {OLDEST} and {NEWEST} were")


def _accelerators() -> str:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch would say"
    import torch

    if not torch.accelerator.is_available():
        return "none that PyTorch finds"
    kind = torch.accelerator.current_accelerator()
    count = torch.accelerator.device_count()
    if kind is None or kind.type != "cuda":
        return f"{count} x {kind}"
    found = (torch.cuda.get_device_properties(index) for index in range(count))
    return ", ".join(f"{p.name} ({p.total_memory / 2**30:.1f} GiB)" for p in found)


def _pinned() -> str:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch would say"
    import torch

    if not torch.cuda.is_available():
        return "not tried: there is no CUDA device"
    try:
        torch.empty(1 << 31, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return f"the system refuses 2 GiB: {str(error).splitlines()[0]}"
    return "2 GiB could be pinned"


def links(names: Sequence[str] = ()) -> str:
    """Return what copies between the named devices take; by default accelerators and the host."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch would say"
    from baechi.calibrate import framework_copies, measure
    from baechi.torch.devices import accelerators

    ends = list(names) or [str(device) for device in accelerators()[:_MOST_LINKED]]
    if not ends:
        return "none to measure: there is no accelerator"
    found = measure(framework_copies("torch", [*ends, "cpu"]), largest=64 << 20, repeats=5)
    if len(found) <= _FEW_LINKS:
        return ", ".join(f"{link.source} to {link.target} {_rate(link.line)}" for link in found)
    slowest, fastest = (of(found, key=lambda link: link.line.at(1 << 20)) for of in (max, min))
    words = (
        f"{len(found)} pairs: from {_rate(slowest.line)} ({slowest.source} to {slowest.target}) "
    )
    return words + f"to {_rate(fastest.line)} ({fastest.source} to {fastest.target})"


def _rate(line: Line) -> str:
    rate = line.seconds_per_byte
    bandwidth = "unlimited" if rate == 0 else f"{1e-9 / rate:.3g} GB/s"
    return f"{bandwidth} after {line.latency * 1e6:.2g} us"


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return "unknown"
    return f"{pages * size / 2**30:.1f} GiB, {os.cpu_count()} processors"


def _cache() -> str:
    folder = os.environ.get("BAECHI_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(folder) if folder else Path(base) / "baechi"
    if not path.is_dir():
        return f"{path}, empty"
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return f"{path}, {size / 2**20:.0f} MiB"


_LINES: dict[str, Callable[[], str]] = {
    "baechi": lambda: f"{_core.version()} in {Path(_core.__file__).parent}",
    "Python": lambda: f"{platform.python_version()} in {sys.executable}",
    "system": platform.platform,
    "memory": _memory,
    "compiler": _compiler,
    "PyTorch": _torch,
    "accelerators": _accelerators,
    "links": links,
    "pinned memory": _pinned,
    "TensorFlow": lambda: _installed("tensorflow") or "not installed",
    "ONNX": lambda: _installed("onnx") or "not installed, and not needed",
    "cache": _cache,
}


def main(arguments: list[str]) -> int:
    """Print every line; what cannot be found out says why."""
    found = {}
    for name, look in _LINES.items():
        try:
            found[name] = look()
        except Exception as error:
            found[name] = f"could not be found out: {error!r}"
    if "json=1" in arguments:
        print(json.dumps(found, indent=1))  # noqa: T201
    else:
        width = max(map(len, found))
        print("\n".join(f"{name:<{width}}  {words}" for name, words in found.items()))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
