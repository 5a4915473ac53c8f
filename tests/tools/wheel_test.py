# SPDX-License-Identifier: Apache-2.0
"""The wheel is for the Pythons that it names, and the source archive builds."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_wheel

STABLE = "cp312-abi3-manylinux_2_28_x86_64"
INFO = "baechi-0.1.0.dist-info"
FILES = (
    "baechi/__init__.py",
    "baechi/_core.abi3.so",
    "baechi-0.1.0.data/scripts/baechi",
    f"{INFO}/licenses/LICENSE",
    f"{INFO}/licenses/third_party/licenses/CLI11.txt",
    f"{INFO}/licenses/third_party/licenses/doctest.txt",
    f"{INFO}/licenses/third_party/licenses/robin-map.txt",
)


def wheel(folder: Path, named: str, tag: str, files: tuple[str, ...]) -> Path:
    path = folder / f"baechi-0.1.0-{named}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, "")
        archive.writestr(f"{INFO}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
    return path


def test_the_installed_package_is_for_this_python() -> None:
    assert check_wheel.installed() == []


def test_a_wheel_for_the_stable_abi_passes(tmp_path: Path) -> None:
    assert check_wheel.of_wheel(wheel(tmp_path, STABLE, STABLE, FILES)) == []


def test_a_wheel_for_3_10_passes(tmp_path: Path) -> None:
    tag = "cp310-cp310-macosx_11_0_arm64"
    files = ("baechi/_core.cpython-310-darwin.so", *FILES[2:])
    assert check_wheel.of_wheel(wheel(tmp_path, tag, tag, files)) == []


@pytest.mark.parametrize(
    ("tag", "extension", "reason"),
    [
        ("cp313-cp313-linux_x86_64", "_core.cpython-313-x86_64-linux-gnu.so", "cp312-abi3"),
        ("cp313-abi3-linux_x86_64", "_core.abi3.so", "cp312-abi3"),
        ("cp311-abi3-linux_x86_64", "_core.abi3.so", "cp311-cp311"),
        (STABLE, "_core.cpython-312-x86_64-linux-gnu.so", "not an extension"),
        ("cp310-cp310-linux_x86_64", "_core.cpython-311-x86_64-linux-gnu.so", "not an extension"),
    ],
)
def test_a_wheel_of_another_abi_fails(
    tmp_path: Path, tag: str, extension: str, reason: str
) -> None:
    files = (f"baechi/{extension}", *FILES[2:])
    assert reason in check_wheel.of_wheel(wheel(tmp_path, tag, tag, files))[0]


@pytest.mark.parametrize("missing", FILES[1:])
def test_a_wheel_that_lacks_something_fails(tmp_path: Path, missing: str) -> None:
    files = tuple(name for name in FILES if name != missing)
    assert len(check_wheel.of_wheel(wheel(tmp_path, STABLE, STABLE, files))) == 1


def test_a_wheel_named_otherwise_than_its_tag_fails(tmp_path: Path) -> None:
    path = wheel(tmp_path, "cp311-cp311-linux_x86_64", STABLE, FILES)
    assert "its name says" in check_wheel.of_wheel(path)[0]


@pytest.mark.skipif(
    shutil.which("git") is None or not (Path(__file__).parents[2] / ".git").exists(),
    reason="git tells which files are ours, in a clone",
)
def test_the_source_archive_has_all_that_a_build_reads(root: Path, tmp_path: Path) -> None:
    build = "from scikit_build_core.build import build_sdist; build_sdist({!r})"
    command = [sys.executable, "-c", build.format(str(tmp_path))]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (archive,) = tmp_path.glob("baechi-*.tar.gz")
    with tarfile.open(archive) as source:
        packed = {str(PurePosixPath(*PurePosixPath(n).parts[1:])) for n in source.getnames()}
    listed = ["git", "ls-files", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"]
    listed += ["cmake", "src", "apps", "python", "third_party"]
    tracked = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout
    assert len(tracked.split()) > 300
    assert set(tracked.split()) - packed == set()
    assert not any(name.startswith(("build/", ".venv/")) for name in packed)
