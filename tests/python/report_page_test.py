# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: it renders without errors, and zoom, pan and search do things."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import baechi
from baechi import _core

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium: $BAECHI_CHROMIUM, or the one on the PATH."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("BAECHI_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on the PATH (Debian and Ubuntu: apt install chromium)")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of one plan, of two, and of a graph with names that try to get out."""
    folder = tmp_path_factory.mktemp("report")
    graph = baechi.generate("gnmt", length=6, batch=16)
    plan = baechi.place_graph(graph, "4x2GiB", method="m-etf")
    other = baechi.place_graph(graph, "4x2GiB", method="m-topo")
    baechi.report(plan, folder / "one.html")
    baechi.report(plan, folder / "two.html", other=other)

    chain = baechi.generate("llama", layers=4, training=True)
    step = baechi.place_graph(chain, "2x96GiB", method="1f1b", micro_batches=10, budget=0.02)
    baechi.report(step, folder / "step.html")

    builder = baechi.GraphBuilder("</title><script>document.title = 'out'</script>")
    before = "</script><script>document.title = 'out'</script><img src=x onerror=alert(1)>"
    builder.add(before, {"gpu": 5}, kind="<b>", outputs=[100])
    for name in ["größe/<!--", "größer/日本語", "{{data}}", "line\nbreak"]:
        builder.add(name, {"gpu": 70}, inputs=[(before, 0)], outputs=[100])
        before = name
    hostile = baechi.place_graph(builder.build(), "2x1MiB", method="m-etf")
    baechi.report(hostile, folder / "hostile.html", labels=["</script>"])
    return folder


class Page:
    """A page that keeps what went wrong in it."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        """Open the file and wait until the page has been built."""
        options.setdefault("viewport", {"width": 1366, "height": 768})
        self.page = browser.new_page(**options)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#footer:not(:empty)", state="attached")
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: the timelines draw in the next one."""
        script = "() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        self.page.evaluate(script)

    def shown(self, number: int = 0) -> tuple[float, float]:
        """Return the moments that a timeline shows."""
        canvas = self.page.locator(".timeline canvas").nth(number)
        begin, end = (canvas.get_attribute(f"data-{name}") for name in ("begin", "end"))
        return float(begin), float(end)

    def drawn(self, what: str, number: int = 0) -> int:
        """Return how many bars, or matches, a timeline shows."""
        return int(self.page.locator(".timeline canvas").nth(number).get_attribute(f"data-{what}"))

    def picture(self) -> str:
        """Return the first timeline as an image."""
        script = "() => document.querySelector('.timeline canvas').toDataURL()"
        return str(self.page.evaluate(script))

    def center(self) -> tuple[float, float]:
        """Return the middle of the first timeline."""
        box = self.page.locator(".timeline canvas").first.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + 70


@pytest.fixture
def one(browser: Any, folder: Path) -> Iterator[Page]:
    """The page of one plan; in the end nothing has gone wrong in it."""
    page = Page(browser, folder / "one.html")
    yield page
    assert page.errors == []
    page.page.close()


@pytest.mark.parametrize("name", ["one", "two", "step", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_without_a_console_message_and_asks_for_nothing(
    browser: Any, folder: Path, name: str, scheme: str
) -> None:
    page = Page(browser, folder / f"{name}.html", color_scheme=scheme)
    assert page.errors == []
    assert page.requests == [(folder / f"{name}.html").as_uri()]
    assert page.page.locator(".timeline canvas").count() == (2 if name == "two" else 1)
    assert page.drawn("bars") > 0
    for heading in ["Timeline", "Methods compared", "Devices", "Lower bounds"]:
        assert page.page.get_by_role("heading", name=heading, exact=True).count() > 0
    assert page.page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.page.close()


def test_the_page_says_numbers_as_the_command_does(browser: Any) -> None:
    rules = Path(__file__).parents[2] / "src/baechi/report/html/format.js"
    page = browser.new_page()

    def told(call: str) -> Any:
        return page.evaluate(f"(() => {{ {rules.read_text()}; return {call}; }})()")

    for value in [0, 1, 999, 1000, 1023, 1024, 9_994, 9_995, 123_456, 999_999, 1_048_000]:
        for scale in [1, 1000, 1024, 1_000_000]:
            assert told(f"timeText({value * scale})") == _core.time_text(value * scale)
            assert told(f"bytesText({value * scale})") == _core.bytes_text(value * scale)
            assert told(f"countText({value * scale})") == _core.count_text(value * scale)
    for fraction in [0, 0.0003, 0.05, 0.0526, 0.0996, 0.895, 0.894, 1, 2, 2.5, 4064.53]:
        assert told(f"percentText({fraction})") == _core.share_text(fraction)
        assert told(f"changeText({fraction})") == _core.change_text(fraction)
        assert told(f"changeText({-fraction})") == _core.change_text(-fraction)
        above = _core.at_most_above(fraction, "the best possible")
        assert "at most " + told(f"atMostAbove({fraction}).join(' ')") == above
    # The moments of a bar are in the unit that they call for, as its time is.
    assert told("momentText(2000, 10)") == "2.00 us"
    assert told("momentText(0, 10)") == "0 ns"
    # Those of one axis share the unit of its end.
    assert told("[0, 5e8, 1e9].map((t) => momentText(t, 5e8, 1.2e9))") == ["0", "0.5 s", "1.0 s"]
    assert told("momentText(1001000000, 1000000)") == "1.001 s"
    page.close()


def test_names_stay_text(browser: Any, folder: Path) -> None:
    page = Page(browser, folder / "hostile.html")
    assert page.page.title() != "out"
    assert page.page.locator("h1").inner_text().startswith("</title><script>")
    assert page.page.locator("img").count() == 0
    page.page.fill("input[type=search]", "日本")
    page.page.press("input[type=search]", "Enter")
    assert page.page.locator(".details .op-name").inner_text() == "größer/日本語"
    page.page.fill("input[type=search]", "onerror")
    page.page.press("input[type=search]", "Enter")
    assert "<img src=x" in page.page.locator(".details .op-name").inner_text()
    assert page.errors == []
    page.page.close()


def test_the_wheel_zooms_where_it_points_and_fit_shows_all_again(one: Page) -> None:
    whole, picture = one.shown(), one.picture()
    bars = one.drawn("bars")
    x, y = one.center()
    one.page.mouse.move(x, y)
    for _ in range(8):
        one.page.mouse.wheel(0, -200)
    one.settle()
    begin, end = one.shown()
    assert end - begin < (whole[1] - whole[0]) / 4
    assert begin > whole[0]
    assert end < whole[1]
    assert one.drawn("bars") < bars
    assert one.picture() != picture
    one.page.get_by_role("button", name="Fit").click()
    one.settle()
    assert one.shown() == whole
    assert one.drawn("bars") == bars
    scrolled = one.page.evaluate("scrollY")
    one.page.mouse.move(x, y)
    one.page.mouse.wheel(0, 120)  # nothing left to zoom out of
    for _ in range(100):
        if one.page.evaluate("scrollY") > scrolled:
            break
        one.settle()
    assert one.page.evaluate("scrollY") > scrolled
    assert one.shown() == whole


def test_on_a_phone_moments_share_a_unit_and_two_fingers_zoom(browser: Any, folder: Path) -> None:
    options = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
    phone = Page(browser, folder / "one.html", **options)
    canvas = phone.page.locator(".timeline canvas").first
    ticks = canvas.get_attribute("data-ticks").split(" | ")
    assert ticks[0] == "0"
    assert len(ticks) >= 3
    assert len({tick.split()[1] for tick in ticks[1:]}) == 1
    assert phone.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    whole = phone.shown()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    touch = phone.page.context.new_cdp_session(phone.page)
    for kind, apart in [("touchStart", 20), *(("touchMove", 20 + 8 * i) for i in range(1, 6))]:
        fingers = [{"x": box["x"] + 230 + side * apart, "y": box["y"] + 80} for side in (-1, 1)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    phone.settle()
    begin, end = phone.shown()
    assert (whole[1] - whole[0]) / 3.5 < end - begin < (whole[1] - whole[0]) / 2.5
    assert begin > whole[0]
    assert phone.errors == []
    phone.page.close()


def test_tables_have_heads_and_the_winner_first_and_a_constant_uses_no_device(
    browser: Any, tmp_path: Path
) -> None:
    builder = baechi.GraphBuilder("constants")
    for name in "abcd":
        builder.add(name, {"gpu": 1_000_000}, permanent=1 << 20, outputs=[4096])
        builder.add(f"{name} constant", {"gpu": 0}, permanent=12)
    graph = builder.build()
    spread = {name: f"gpu:{i % 2}" for i, name in enumerate("abcd")}
    spread |= {f"{name} constant": f"gpu:{2 + i % 2}" for i, name in enumerate("abcd")}
    plan = baechi.place_graph(graph, "4x1GiB", budget=0.01)
    expert = baechi.place_graph(graph, "4x1GiB", method="expert", expert=spread)
    page = Page(browser, baechi.report(expert, tmp_path / "expert.html"))
    assert "2 of 4" in page.page.locator(".tile:has-text('Devices used') .value").inner_text()
    page.page.close()
    page = Page(browser, baechi.report(plan, tmp_path / "auto.html"))
    assert all(page.page.locator("th").all_inner_texts())
    rows = page.page.locator("section:has(h2:text-is('Methods compared')) tbody tr")
    names = [text.split()[0] for text in rows.all_inner_texts()]
    steps = {row.method: row.makespan_ns for row in plan.methods}
    assert names[0] == plan.method
    assert [steps[name] for name in names] == sorted(
        steps.values(), key=lambda s: (s is None, s or 0)
    )
    assert page.errors == []
    page.page.close()


def test_dragging_pans(one: Page) -> None:
    x, y = one.center()
    one.page.mouse.move(x, y)
    for _ in range(4):
        one.page.mouse.wheel(0, -300)
    one.settle()
    begin, end = one.shown()
    one.page.mouse.down()
    one.page.mouse.move(x - 200, y, steps=5)
    one.page.mouse.up()
    one.settle()
    moved = one.shown()
    assert moved[0] > begin
    assert moved[1] - moved[0] == pytest.approx(end - begin)


def test_keys_zoom_pan_step_and_toggle(one: Page) -> None:
    one.page.locator(".timeline canvas").focus()
    whole = one.shown()
    for _ in range(3):
        one.page.keyboard.press("+")
    one.settle()
    zoomed = one.shown()
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    one.page.keyboard.press("ArrowRight")
    one.settle()
    assert one.shown()[0] > zoomed[0]
    one.page.keyboard.press("]")
    first = one.page.locator(".details .op-name").inner_text()
    one.page.keyboard.press("]")
    assert one.page.locator(".details .op-name").inner_text() != first
    picture = one.picture()
    one.page.keyboard.press("c")
    one.settle()
    assert one.page.get_by_role("button", name="Critical path").get_attribute("aria-pressed") == (
        "false"
    )
    assert one.picture() != picture
    one.page.keyboard.press("0")
    one.settle()
    assert one.shown() == whole
    one.page.keyboard.press("/")
    assert one.page.evaluate("document.activeElement.type") == "search"


def test_search_marks_what_it_finds_and_goes_there(one: Page) -> None:
    whole, picture = one.shown(), one.picture()
    one.page.fill("input[type=search]", "projection")
    one.settle()
    found = one.page.locator(".count").inner_text()
    assert found.endswith("found")
    assert one.drawn("matches") == int(found.split()[0])
    assert one.picture() != picture
    one.page.press("input[type=search]", "Enter")
    one.settle()
    assert "projection" in one.page.locator(".details .op-name").inner_text()
    assert one.shown() != whole
    one.page.fill("input[type=search]", "no such operator")
    assert one.page.locator(".count").inner_text() == "none found"
    one.page.press("input[type=search]", "Escape")
    one.settle()
    assert one.drawn("matches") == 0


def test_pointing_at_a_bar_tells_what_it_is_and_why_it_waited(one: Page) -> None:
    box = one.page.locator(".timeline canvas").first.bounding_box()
    one.page.keyboard.press("]")  # any operator: it is brought into sight and is wide
    one.page.keyboard.press("]")
    one.settle()
    name = one.page.locator(".details .op-name").inner_text()
    seen = set()
    for x in range(140, int(box["width"]), 4):
        one.page.mouse.move(box["x"] + x, box["y"] + 70)
        if one.page.locator("#tooltip").is_visible():
            seen.add(one.page.locator("#tooltip .op-name").inner_text())
            words = one.page.locator("#tooltip").inner_text()
            assert all(term in words for term in ("kind", "runs", "memory", "waits")), words
    assert name in seen


def test_colours_by_layer_and_pass_change_the_legend(one: Page) -> None:
    picture = one.picture()
    one.page.select_option("select", "pass")
    one.settle()
    words = one.page.locator(".legend").first.inner_text()
    assert "forward" in words
    assert "backward and update" in words
    assert one.picture() != picture
    one.page.locator(".legend button").first.click()
    one.settle()
    assert 0 < one.drawn("matches") < one.drawn("bars")


def test_micro_batches_have_colours_and_idle_time_its_cause(browser: Any, folder: Path) -> None:
    step = Page(browser, folder / "step.html")
    legend = step.page.locator(".legend").first
    assert step.page.locator("select").input_value() == "micro-batch"
    names = legend.locator("button").all_inner_texts()
    assert names == ["0, 8", "1, 9", *(f"micro-batch {m}" for m in range(2, 8)), "once per step"]
    assert "idle: drain" in legend.inner_text()
    table = step.page.locator("h3:has-text('Why they are idle') + div")
    head, first, _ = table.locator("tr").all_inner_texts()
    assert head.split() == ["device", "idle", "fill", "drain", "imbalance", "transfers", "memory"]
    assert first.startswith("gpu:0")
    by_batch = step.picture()
    box = step.page.locator(".timeline canvas").first.bounding_box()
    step.page.mouse.move(box["x"] + 134, box["y"] + 140)  # the second device is idle at first
    lanes = step.page.evaluate("() => document.getElementById('tooltip').innerText")
    for y in range(100, int(box["height"]), 6):
        if "is idle: fill" in lanes:
            break
        step.page.mouse.move(box["x"] + 134, box["y"] + y)
        lanes = step.page.evaluate("() => document.getElementById('tooltip').innerText")
    assert "gpu:1 is idle: fill" in lanes
    step.page.select_option("select", "kind")
    step.settle()
    assert step.picture() != by_batch
    assert step.errors == []
    step.page.close()


def test_the_theme_button_overrides_the_system(browser: Any, folder: Path) -> None:
    page = Page(browser, folder / "one.html", color_scheme="dark")
    light = "getComputedStyle(document.body).backgroundColor"
    dark = page.page.evaluate(light)
    page.page.get_by_role("button", name="Light colours").click()
    assert page.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.page.evaluate(light) != dark
    page.page.close()


def test_two_plans_zoom_together(browser: Any, folder: Path) -> None:
    page = Page(browser, folder / "two.html")
    boxes = [page.page.locator(".timeline canvas").nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]  # side by side
    assert boxes[0]["x"] < boxes[1]["x"]
    page.page.locator(".timeline canvas").first.focus()
    page.page.keyboard.press("+")
    page.settle()
    assert page.shown(0) == page.shown(1)
    assert page.page.get_by_role("heading", name="What differs").count() == 1
    page.page.close()


def test_it_prints(browser: Any, folder: Path, tmp_path: Path) -> None:
    page = Page(browser, folder / "one.html", color_scheme="dark")
    page.page.emulate_media(media="print")
    page.settle()
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert not page.page.locator("input[type=search]").is_visible()
    paper = page.page.pdf(path=str(tmp_path / "report.pdf"))
    assert paper.startswith(b"%PDF")
    assert page.errors == []
    page.page.close()


def test_a_large_plan_opens_fast_and_is_small(browser: Any, tmp_path: Path) -> None:
    graph = baechi.generate("gnmt", length=45, batch=32)
    assert len(graph) > 20_000
    plan = baechi.place_graph(graph, "4x4GiB", method="m-etf", bounds=False)
    path = baechi.report(plan, tmp_path / "large.html")
    assert path.stat().st_size < 3_000_000
    page = Page(browser, path)
    assert page.drawn("bars") == len(graph)
    timing = "performance.getEntriesByType('navigation')[0].domComplete"
    assert page.page.evaluate(timing) < 10_000  # 2 s on a laptop; test machines are busy
    assert page.errors == []
    page.page.close()
