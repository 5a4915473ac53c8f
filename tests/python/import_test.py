# SPDX-License-Identifier: Apache-2.0
"""What ``import baechi`` costs and brings along."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import baechi._core
import pytest

import baechi

HEAVY = ["numpy", "networkx", "torch", "tensorflow", "asyncio", "multiprocessing"]


def python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_version_has_one_home(root: Path) -> None:
    found = re.search(r"project\(baechi VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())
    assert found is not None
    assert baechi.__version__ == found.group(1)


def test_import_loads_no_framework_and_no_numpy() -> None:
    loaded = python("import sys, baechi; print(*sys.modules)").split()
    assert "baechi._core" in loaded
    assert sorted(set(loaded) & set(HEAVY)) == []


def test_import_takes_less_than_150_ms() -> None:
    code = "import time; t = time.process_time(); import baechi; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(5)) < 0.150


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm (binutils)")
def test_extension_exports_only_its_init_function() -> None:
    extension = baechi._core.__file__
    assert extension is not None
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", extension], check=True, capture_output=True, text=True
    ).stdout
    assert [line.split()[-1] for line in listing.splitlines()] == ["PyInit__core"]


def test_stub_is_the_one_that_the_extension_generates(root: Path) -> None:
    pytest.importorskip("nanobind", reason="needs nanobind's stub generator")
    writer = [sys.executable, str(root / "tools" / "write_stub.py")]
    fresh = subprocess.run(writer, check=True, capture_output=True, text=True).stdout
    committed = root / "python" / "baechi" / "_core.pyi"
    assert committed.read_text() == fresh, "run ./do stub"


def test_options_are_the_ones_that_the_core_lists(root: Path) -> None:
    writer = [sys.executable, str(root / "tools" / "write_options.py")]
    fresh = subprocess.run(writer, check=True, capture_output=True, text=True).stdout
    committed = root / "python" / "baechi" / "options.py"
    assert committed.read_text() == fresh, "run ./do stub"


def test_the_page_of_the_command_is_what_it_says_of_itself(root: Path) -> None:
    writer = [sys.executable, str(root / "tools" / "write_command.py")]
    fresh = subprocess.run(writer, check=True, capture_output=True, text=True).stdout
    assert fresh.count("\n## ") > 20
    page = root / "docs" / "reference" / "command.md"
    assert page.read_text() == fresh, "run ./do stub"
