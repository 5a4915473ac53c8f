# SPDX-License-Identifier: Apache-2.0
"""Which versions of PyTorch are tested, and what `import baechi.torch` says of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from baechi.torch import versions


def imported(version: str) -> str:
    """Import baechi.torch with a PyTorch that says it is another one; what stderr got."""
    text = f"import torch\ntorch.__version__ = {version!r}\nimport baechi.torch\n"
    command = [sys.executable, "-W", "default::UserWarning", "-c", text]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_the_tested_versions_are_those_of_the_lists_and_of_the_reference(root: Path) -> None:
    lists = {"torch": versions.NEWEST, "torch-oldest": versions.OLDEST}
    for name, version in lists.items():
        lines = (root / f"tools/requirements-{name}.txt").read_text().splitlines()
        assert f"torch=={version}" in lines
        assert f"| {version} |" in (root / "docs/reference/pytorch.md").read_text()
    oldest = ".".join(versions.OLDEST.split(".")[:2])
    assert f'torch = ["torch>={oldest}"]' in (root / "pyproject.toml").read_text()


def test_a_newer_pytorch_gives_one_line_at_the_import() -> None:
    said = imported("99.1.0a0+git1")
    assert said.splitlines() == [
        f"<string>:3: UserWarning: baechi.torch was tested with PyTorch {versions.OLDEST} to "
        f"{versions.NEWEST}, not with 99.1.0a0+git1: compare what it computes, or install a "
        "tested one"
    ]


@pytest.mark.filterwarnings("error")
def test_a_later_patch_of_the_newest_is_as_good() -> None:
    versions.check(versions.NEWEST.rsplit(".", 1)[0] + ".99+cpu")
    versions.check(versions.OLDEST)


def test_an_older_pytorch_is_refused_at_the_import() -> None:
    last = imported("2.9.1").splitlines()[-1]
    assert last == (
        f"ImportError: PyTorch 2.9.1 is older than {versions.OLDEST}, the oldest that "
        f"baechi.torch runs on: python -m pip install 'torch>={versions.OLDEST}'"
    )
