# SPDX-License-Identifier: Apache-2.0
"""Checks that a wheel is what it says: ``check_wheel.py WHEEL...``, or what is installed.

From CPython 3.12 on one wheel serves all later versions, by the stable ABI; 3.10 and 3.11 need one
each, since nanobind needs what their stable ABI lacks. Every wheel holds the extension for just
that ABI, the command, and the licences.
"""

from __future__ import annotations

import re
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

FIRST_STABLE = 12
# What a wheel calls Python, ABI and platform.
TAG = re.compile(r"cp3(?P<minor>\d+)-(?P<abi>\w+)-(?P<platform>[\w.]+)")
LICENSES = ("LICENSE", "CLI11.txt", "doctest.txt", "robin-map.txt")


def problems(tags: list[str], names: list[str]) -> list[str]:
    """Return what is wrong with a wheel of these tags that holds files of these names."""
    found: list[str] = []
    extensions = [n for n in names if re.fullmatch(r"baechi/_core\..*(so|pyd)", n)]
    if len(extensions) != 1:
        return [f"one extension baechi/_core is expected, not {extensions}"]
    if not tags:
        found.append("it has no tag")
    for tag in tags:
        parsed = TAG.fullmatch(tag)
        if parsed is None:
            found.append(f"the tag {tag} is not of a CPython 3")
            continue
        minor = int(parsed["minor"])
        stable = minor >= FIRST_STABLE
        expected = (f"cp3{FIRST_STABLE}", "abi3") if stable else (f"cp3{minor}", f"cp3{minor}")
        if (f"cp3{minor}", parsed["abi"]) != expected:
            found.append(f"the tag {tag} should begin with {'-'.join(expected)}")
        middle = ".abi3." if stable else f".cpython-3{minor}-"
        if middle not in extensions[0]:
            found.append(f"{extensions[0]} is not an extension for {'-'.join(expected)}")
    # In a wheel baechi-0.1.0.data/scripts/baechi, once installed ../../../bin/baechi.
    if not any(
        PurePosixPath(n).parts[-2:] in {("scripts", "baechi"), ("bin", "baechi")} for n in names
    ):
        found.append("the command baechi is missing")
    held = {PurePosixPath(n).name for n in names if ".dist-info/licenses/" in n}
    found += [f"the licence {name} is missing" for name in LICENSES if name not in held]
    return found


def of_wheel(path: Path) -> list[str]:
    """Return what is wrong with a wheel file."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        metadata = next((n for n in names if n.endswith(".dist-info/WHEEL")), None)
        if metadata is None:
            return ["it is no wheel: there is no WHEEL in it"]
        tags = re.findall(r"^Tag: (\S+)$", wheel.read(metadata).decode(), re.MULTILINE)
    named = "-".join(path.stem.split("-")[2:])
    first = named.split(".")[0]
    wrong = [] if any(tag.startswith(first) for tag in tags) else [f"its name says {named}: {tags}"]
    return wrong + problems(tags, names)


def installed() -> list[str]:
    """Return what is wrong with the package that is installed here."""
    package = distribution("baechi")
    tags = re.findall(r"^Tag: (\S+)$", package.read_text("WHEEL") or "", re.MULTILINE)
    return problems(tags, [str(file) for file in package.files or []])


def main() -> int:
    """Check the wheels that are named, else the installed package."""
    checked = {name: of_wheel(Path(name)) for name in sys.argv[1:]} or {"baechi": installed()}
    for name, wrong in checked.items():
        for line in wrong:
            print(f"{name}: {line}", file=sys.stderr)
    return 1 if any(checked.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
