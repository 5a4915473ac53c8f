# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/how_to/gallery.md: pages of baechi report, in headless Chromium.

Usage: python tools/make_gallery.py [BAECHI]. Needs the playwright package and Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
LINK = ["--link", "134us,5.7GB/s"]


def run_in(folder: Path, *command: str) -> None:
    """Run a command that says nothing."""
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def make_pages(baechi: str, folder: Path) -> None:
    """Write the pages that the pictures are of."""

    def run(*arguments: str) -> None:
        run_in(folder, baechi, *arguments)

    run("generate", "gnmt", "--length", "40", "-o", "gnmt.json")  # as README.md has it
    run("place", "gnmt.json", "--cluster", "4x3GiB", "-o", "plan.json")
    run("report", "gnmt.json", "plan.json", "-o", "gnmt.html")
    run("generate", "inception-v3", "--batch", "32", "-o", "inception.json")
    cluster = ["--cluster", "4x2GiB", *LINK]
    run("place", "inception.json", *cluster, "--method", "all", "-o", "inception.plan.json")
    run("report", "inception.json", "inception.plan.json", "-o", "inception.html")
    run("place", "inception.json", *cluster, "--method", "m-topo", "-o", "m-topo.plan.json")
    run("report", "inception.json", "inception.plan.json", "m-topo.plan.json", "-o", "two.html")


def make_drawings(baechi: str, folder: Path) -> None:
    """Draw the plans that `baechi export` draws, into docs/images."""

    def run(*arguments: str) -> None:
        run_in(folder, baechi, *arguments)

    run("generate", "llama", "--training", "-o", "llama.json")
    step = ["--cluster", "4x96GiB", "--micro-batches", "8"]
    run("place", "llama.json", *step, "-o", "pipeline.json")
    picture = ["--to", "svg", "-o", str(IMAGES / "picture_pipeline.svg")]
    run("export", "llama.json", "pipeline.json", *picture)


def take_pictures(browser: Any, folder: Path) -> None:
    """Photograph the pages."""

    def page_of(name: str, scheme: str, height: int = 768) -> Any:
        page = browser.new_page(
            viewport={"width": 1366, "height": height}, color_scheme=scheme, device_scale_factor=1
        )
        page.goto((folder / f"{name}.html").as_uri())
        page.wait_for_timeout(500)
        return page

    page_of("gnmt", "light").screenshot(path=IMAGES / "report_gnmt.png")
    zoomed = page_of("gnmt", "dark")
    zoomed.select_option("select", "layer")
    zoomed.fill("input[type=search]", "attention")
    zoomed.press("input[type=search]", "Enter")
    zoomed.locator(".timeline canvas").focus()
    for _ in range(11):
        zoomed.keyboard.press("-")
    zoomed.wait_for_timeout(300)
    zoomed.screenshot(path=IMAGES / "report_search.png")
    page_of("inception", "light", 1800).screenshot(path=IMAGES / "report_inception.png")
    page_of("two", "light", 1100).screenshot(path=IMAGES / "report_two.png")


def main() -> int:
    """Make all pictures."""
    from playwright.sync_api import sync_playwright

    baechi = sys.argv[1] if len(sys.argv) > 1 else shutil.which("baechi")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if baechi is None or chromium is None:
        print("needs baechi and chromium on the PATH", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        make_pages(str(Path(baechi).resolve()), Path(folder))
        make_drawings(str(Path(baechi).resolve()), Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take_pictures(browser, Path(folder))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
