# SPDX-License-Identifier: Apache-2.0
"""What `mkdocs build` does beside its own work: pictures of the gallery open the pages they show.

The pages are made by the command ``baechi``; where it is not on the PATH the pictures stay
pictures.
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


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make each picture of a report a link to it."""
    if page.file.src_uri != GALLERY or shutil.which("baechi") is None:
        return markdown

    def linked(picture: re.Match[str]) -> str:
        name = PAGES.get(Path(picture["path"]).name)
        return picture[0] if name is None else f"[{picture[0]}]({name})"

    return re.sub(r"!\[[^\]]*\]\((?P<path>[^)]+)\)", linked, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Write the pages beside the gallery."""
    baechi = shutil.which("baechi")
    if baechi is None:
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from make_gallery import make_pages

    folder = Path(config.site_dir) / "how_to" / "gallery"
    make_pages(baechi, folder)
    for file in folder.glob("*.json"):  # graphs and plans
        file.unlink()
