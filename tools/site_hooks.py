# SPDX-License-Identifier: Apache-2.0
"""What `mkdocs build` does beside its own work.

Pictures of the gallery open the pages that they show. These are made by the command ``baechi``;
where it is not on the PATH the pictures stay pictures. What pages link to outside of ``docs`` is no
page: the site shows the text of a file, and only names a folder. The landing page shows the
README's chart. Search puts pages about tasks first, and those of the laboratory last.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

GALLERY = "how_to/gallery.md"
# Which page of make_gallery a picture is of.
PAGES = {
    "report_gnmt.png": "gnmt.html",
    "report_search.png": "gnmt.html",
    "report_inception.png": "inception.html",
    "report_two.png": "two.html",
}


# How much more than others the pages of a folder count when searching.
BOOST = {"tutorial": 2.0, "how_to": 2.0, "lab": 0.2}
CHART = "<!-- the README's chart -->"


# What pages link to outside of docs, by its path in the site.
_outside: dict[str, Path] = {}


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links to programs to their text, and pictures of a report to it."""
    docs = Path(config.docs_dir).resolve()
    folder = page.file.src_uri.partition("/")[0]
    page.meta.setdefault("search", {"boost": BOOST.get(folder, 1.0)})
    if CHART in markdown:
        markdown = markdown.replace(CHART, _chart(docs.parent / "README.md"))
    here = (docs / page.file.src_uri).parent
    up = "../" * page.file.url.count("/")

    def led(link: re.Match[str]) -> str:
        target = (here / link["path"]).resolve()
        if target.is_relative_to(docs) or not target.is_relative_to(docs.parent):
            return link[0]
        if not target.is_file():
            return str(link["words"])
        name = f"sources/{target.relative_to(docs.parent)}.txt"
        _outside[name] = target
        return f'<a href="{up}{name}">{link["words"]}</a>'

    markdown = re.sub(r"(?<!!)\[(?P<words>[^\]]*)\]\((?P<path>\.\./[^)#\s]+)\)", led, markdown)
    if page.file.src_uri != GALLERY or shutil.which("baechi") is None:
        return markdown

    def linked(picture: re.Match[str]) -> str:
        name = PAGES.get(Path(picture["path"]).name)
        return picture[0] if name is None else f"[{picture[0]}]({name})"

    return re.sub(r"!\[[^\]]*\]\((?P<path>[^)]+)\)", linked, markdown)


def _chart(readme: Path) -> str:
    """Return the README's section with the chart, for a page of docs."""
    found = re.search(
        r"^## Step times.*?^```.*?^```$", readme.read_text(), re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise ValueError(f"{readme} has no section with step times and a chart")
    return found[0].replace("](docs/", "](")


def on_post_build(config: Any, **_: Any) -> None:
    """Write the programs that pages link to, and the pages beside the gallery."""
    for name, source in _outside.items():
        written = Path(config.site_dir) / name
        written.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, written)
    baechi = shutil.which("baechi")
    if baechi is None:
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from make_gallery import make_pages

    folder = Path(config.site_dir) / "how_to" / "gallery"
    make_pages(baechi, folder)
    for file in folder.glob("*.json"):  # graphs and plans
        file.unlink()
