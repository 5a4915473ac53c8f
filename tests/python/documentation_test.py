# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation run as they stand."""

from __future__ import annotations

import doctest
import re
import tempfile
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


@pytest.mark.parametrize("page", ["README.md", *pages.pages_of("")])
def test_a_page_prints_what_it_says(root: Path, page: str, tmp_path: Path) -> None:
    for shown, printed in pages.run(root / page, tmp_path):
        assert pages.says(shown, printed), printed
        assert not pages.wrong(shown, printed), printed


def test_programs_in_tutorials_and_tasks_run_or_say_why_not() -> None:
    found = {page: list(pages.blocks(page.read_text())) for page in pages.pages()}
    assert len(found) > 15
    for page, blocks in found.items():
        for block in blocks:
            assert block.runs or block.not_run, f"{page}:{block.line}: neither runs nor says why"
    assert {pages.framework(page) for page in found} == {"", "torch", "tensorflow"}
    reasons = [b.not_run for blocks in found.values() for b in blocks if b.not_run is not None]
    launchers = [
        why for why in reasons if why.endswith(("a Slurm cluster", "a Kubernetes cluster"))
    ]
    assert len(reasons) - len(launchers) < 10
    assert len(launchers) < 4


def test_a_page_that_prints_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\necho 12 ms; echo 3; echo end\n```\n\n```text\n7 ms\n...\nend\n```\n"
        "<!-- not run: it would take a week -->\n```sh\nexit 1\n```\n"
        "<!-- python\na = 5\n-->\n```python\nprint(a, 'us')\n```\n\n```text\n5 ms\n```\n"
    )
    week, unseen = [*pages.blocks(page.read_text())][1:3]
    assert (week.runs, week.not_run, unseen.body) == (False, "it would take a week", "a = 5\n")
    pairs = pages.run(page, tmp_path)
    assert [pages.says(*pair) for pair in pairs] == [True, False]
    assert [pages.wrong(*pair) for pair in pairs] == [[("7", "12")], []]
    assert pages.wrong("9.5 of 100, 1,000", "9.6 of 111, 1,099") == [("100", "111")]
    page.write_text("```sh\necho so far\nfalse\n```\n")
    with pytest.raises(AssertionError, match="so far"):
        pages.run(page, Path(tempfile.mkdtemp(dir=tmp_path)))


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
