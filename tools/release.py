# SPDX-License-Identifier: Apache-2.0
"""Makes what a release publishes, and checks it, up to the upload: ``./do release``.

A source archive, and from it a wheel for this system and this Python; both are looked at, the wheel
is installed into an environment of its own, and makes a plan. The other wheels are the workflow's.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAN = "import baechi; print(baechi.place_graph(baechi.generate('gnmt', length=4), '2x8GiB'))"


class Objection(Exception):
    """What stands in the way of a release, and the way out."""


def run(*command: str | Path) -> str:
    """Run a command; its words are shown only when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), file=sys.stderr)
        raise Objection(f"this failed: {' '.join(words)}")
    return done.stdout


def version_of(lists: str) -> str:
    """Return the version that CMakeLists.txt has."""
    found = re.search(r"project\(baechi VERSION ([0-9.]+)", lists)
    if found is None:
        raise Objection("CMakeLists.txt: no project(baechi VERSION ...)")
    return found[1]


def objections(version: str, changes: str, status: str, tags: str) -> list[str]:
    """Return what has to be done before this commit can be released as `version`."""
    found = []
    head = next((line for line in changes.splitlines() if line.startswith("## ")), "")
    if not re.fullmatch(rf"## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", head):
        found.append(
            f"CHANGELOG.md: the top section is {head!r}: make it '## {version} (YYYY-MM-DD)'"
        )
    if status.strip():
        found.append("the working tree has changes: commit them")
    if f"v{version}" not in tags.split():
        found.append(f"the commit has no tag v{version}: git tag v{version}, once its tests passed")
    return found


def make(version: str) -> list[Path]:
    """Build into dist/ and check what is there."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    print("release: building the source archive and a wheel of it (minutes)", flush=True)
    run(sys.executable, "-m", "build", "--outdir", dist)
    made = sorted(dist.iterdir())
    wheels = [path for path in made if path.suffix == ".whl"]
    run(sys.executable, "tools/check_wheel.py", *wheels)
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    with tempfile.TemporaryDirectory() as temporary:
        python = Path(temporary) / "bin" / "python"
        run(sys.executable, "-m", "venv", temporary)
        run(python, "-m", "pip", "install", "--no-deps", "--no-index", *wheels)
        found = run(python.with_name("baechi"), "--version").strip()
        if version not in found.split():
            raise Objection(f"the installed command says {found!r}, not {version}")
        run(python, "-c", PLAN)
    return made


def main(arguments: list[str]) -> int:
    """Make the release, or say in a line what stands in its way."""
    parser = argparse.ArgumentParser(prog="./do release", description=__doc__)
    parser.add_argument("--try", action="store_true", dest="trial", help="whatever the commit is")
    options = parser.parse_args(arguments)
    try:
        version = version_of((ROOT / "CMakeLists.txt").read_text())
        if not options.trial:
            status, tags = run("git", "status", "--porcelain"), run("git", "tag", "--points-at")
            found = objections(version, (ROOT / "CHANGELOG.md").read_text(), status, tags)
            if found:
                raise Objection("; ".join(found))
        made = make(version)
    except Objection as objection:
        print(f"release: {objection}", file=sys.stderr)
        return 1
    for path in made:
        print(f"dist/{path.name}: {path.stat().st_size / 1e6:.1f} MB, checked")
    print("Put the other wheels (workflow `wheels`) beside them, then: twine upload dist/*")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
