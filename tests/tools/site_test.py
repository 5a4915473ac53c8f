# SPDX-License-Identifier: Apache-2.0
"""What the site has beside its pages, and what is found wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_site
import site_hooks


def shown(root: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Return a page's text as the site has it, and what it says of itself."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name, url=name), meta={})
    text = (root / "docs" / name).read_text()
    config = SimpleNamespace(docs_dir=str(root / "docs"))
    return site_hooks.on_page_markdown(text, page, config), page.meta


def test_the_landing_page_shows_the_chart_of_the_readme(root: Path) -> None:
    text, _ = shown(root, "README.md")
    lines = [line for line in (root / "README.md").read_text().splitlines() if "█" in line]
    assert len(lines) > 10
    assert [line for line in text.splitlines() if "█" in line] == lines
    assert "](lab/results/peers.md)" in text


def test_search_finds_tasks_first_and_the_laboratory_last(root: Path) -> None:
    names = ("lab/tried.md", "reference/limits.md", "how_to/explain.md", "tutorial/first_plan.md")
    boosts = [shown(root, name)[1]["search"]["boost"] for name in names]
    assert boosts[0] < boosts[1] < boosts[2] <= boosts[3]


def test_a_site_with_a_dead_link_or_something_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<a href="#top">up</a><a href="..">home</a>')
    (tmp_path / "index.html").write_text(
        '<a href="there/">a</a><a href="gone/">b</a><a href="https://example.org">c</a>'
        '<link href="https://fonts.example.org/css"><img src="gone.png">'
    )
    assert check_site.problems(tmp_path) == [
        "index.html links to gone/, which is not there",
        "index.html loads https://fonts.example.org/css",
        "index.html links to gone.png, which is not there",
    ]
