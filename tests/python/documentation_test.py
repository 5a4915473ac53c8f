# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import baechi


def test_docs_python_md_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    text = (root / "docs" / "reference" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/reference/python.md", "exec"), scope)
    assert (tmp_path / "plan.json").exists()


def test_docstrings_run() -> None:
    failed, attempted = doctest.testmod(baechi)
    assert attempted >= 3
    assert failed == 0
