# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import baechi
from tests import pages


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


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first_plan.md"])
def test_a_page_prints_what_it_says(root: Path, page: str) -> None:
    pairs = pages.run(root / page)
    assert pairs
    for shown, printed in pairs:  # a better plan may change figures by a little
        assert pages.without_numbers(printed) == pages.without_numbers(shown)
        assert pages.numbers(printed) == pytest.approx(pages.numbers(shown), rel=0.1, abs=1)


def test_the_readme_is_short(root: Path) -> None:
    text = (root / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert len(re.findall(r"^\| \[", text, re.MULTILINE)) <= 8


# What GitHub makes of a heading to link to it.
def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    return {_anchor(line) for line in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def test_links_between_pages_lead_somewhere(root: Path) -> None:
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    assert len(found) > 40
    dead = []
    for page in found:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            known = target.exists() and (
                not anchor or target.suffix != ".md" or anchor in _anchors(target)
            )
            if not known:
                dead.append(f"{page.relative_to(root)}: {link}")
    assert not dead


def test_docstrings_run() -> None:
    failed, attempted = doctest.testmod(baechi)
    assert attempted >= 3
    assert failed == 0
