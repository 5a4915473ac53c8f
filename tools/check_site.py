# SPDX-License-Identifier: Apache-2.0
"""Checks the built documentation: every link leads to a file, and nothing is loaded from elsewhere.

``check_site.py build/site``; mkdocs itself checks links between pages alone.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src"}


class Page(HTMLParser):
    """What a page links to and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links of one element."""
        found = dict(attrs)
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        elif tag in LOADED and found.get(LOADED[tag]) and found.get("rel") != "canonical":
            self.loaded.append(str(found[LOADED[tag]]))


def problems(site: Path) -> list[str]:
    """Return what is wrong with a site, a line for each."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page = Page(path.read_text())
        name = path.relative_to(site)
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{name} loads {link}")
                continue
            where = unquote(parts.path)
            base = site if where.startswith("/") else path.parent
            target = base / where.lstrip("/") if where else path
            if not (target / "index.html" if target.is_dir() else target).is_file():
                found.append(f"{name} links to {link}, which is not there")
    return found


def main() -> int:
    """Print what is wrong, or how many pages there are; 1 when something is."""
    site = Path(sys.argv[1])
    wrong = problems(site)
    print("\n".join(wrong) if wrong else f"{len(list(site.rglob('*.html')))} pages")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
