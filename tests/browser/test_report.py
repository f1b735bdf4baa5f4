"""The report in a real browser, opened from a file as a reader would."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from lamina.explain import findings, headlines, paragraphs, rooflines, shares
from lamina.record import LayerRun
from lamina.report.figures import Material
from lamina.report.html import write_report
from lamina.report.layers import LONGEST
from lamina.report.palette import DARK, LIGHT

from ..report.convnext import convnext, kernels
from ..report.records import ROOFS, bench, changed, epochs, failed, pick, run, whole_step

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or which("chromium") or which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install one or name it in $CHROMIUM"),
]

HOSTILE = "</script><img src=x onerror=alert(1)> & <b>'畳' {{ 7*7 }} %{y} $x$"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
        )
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and everything it asked for or complained about."""

    page: Any
    path: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def column(self, table: str, number: int) -> list[str]:
        """Texts of a column's visible cells, from the top; columns count from 1."""
        cells = self.page.locator(f"#{table} tbody tr:not([hidden]) > :nth-child({number})")
        return [text.strip() for text in cells.all_inner_texts()]


def point_at(mark: Any) -> None:
    """Move the mouse over a mark; plotly finds it by place, under a sheet of its own."""
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    mark.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def open_report(browser: Any, folder: Path, rows: list[LayerRun], **more: Any) -> Opened:
    """Write a report of the rows and open it."""
    path = folder / "report.html"
    view = {"width": more.pop("width", 1280), "height": 900}
    page = browser.new_page(viewport=view, color_scheme=more.pop("scheme", "light"))
    write_report(path, run(), rows, ROOFS, findings(rows, ROOFS), rooflines(rows, ROOFS), shares(rows), **more)
    it = Opened(page, path)
    page.on("request", lambda request: it.requests.append(request.url))
    page.on("console", lambda message: it.complaints.append(message.text))
    page.on("pageerror", lambda error: it.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (it.complaints.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    playwright.expect(page.locator(".figure:not(.js-plotly-plot)")).to_have_count(0, timeout=30_000)
    return it


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens reports; no page may have complained by the end."""
    opened: list[Opened] = []

    def show(rows: list[LayerRun], **more: Any) -> Opened:
        opened.append(open_report(browser, tmp_path, rows, **more))
        return opened[-1]

    yield show
    for it in opened:
        it.page.close()
        assert it.complaints == []


@pytest.fixture(scope="module")
def it(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """An ordinary report, opened once for the tests that leave it usable."""
    opened = open_report(browser, tmp_path_factory.mktemp("report"), ROWS)
    yield opened
    opened.page.close()
    assert opened.complaints == []


ROWS = [*bench(), whole_step(bench(), 44_000)]


def test_it_asks_for_nothing_but_itself(show: Any) -> None:
    it = show(ROWS, epochs=epochs())
    it.page.hover("#figure-roofline")
    it.page.wait_for_timeout(300)
    assert it.requests == [it.path.as_uri()]


def test_a_shared_library_is_found_beside_the_report(show: Any) -> None:
    it = show(ROWS, assets="dir")
    assert it.requests == [it.path.as_uri(), it.path.with_name("plotly.min.js").as_uri()]
    assert it.page.locator("#figure-time .bars .point path").count() == 44


@pytest.mark.parametrize("width", [1280, 420])
def test_figures_show_every_row_and_fit_the_page(show: Any, width: int) -> None:
    it = show(ROWS, width=width, epochs=epochs(12))
    for name in ("time", "roofline", "training"):
        box = it.page.locator(f"#figure-{name} svg.main-svg").first.bounding_box()
        assert box["width"] > 0.85 * width - 60
        assert box["height"] > 200
    assert it.page.locator("#figure-time .bars .point path").count() == 44
    assert it.page.locator("#figure-roofline .scatterlayer .points path").count() == 44
    assert it.page.locator("#figure-training .scatterlayer .points path").count() == 4 * 12
    assert it.page.evaluate("document.documentElement.scrollWidth") <= width


def test_bars_are_as_long_as_their_times(it: Opened) -> None:
    boxes = [box.bounding_box() for box in it.page.locator("#figure-time .bars .point path").all()]
    forward = [row.timing.median_us for row in bench() if row.phase == "forward" and row.timing]
    widths = [box["width"] for box in boxes[: len(forward)]]
    longest = forward.index(max(forward))
    for us, width in zip(forward, widths, strict=True):
        assert width == pytest.approx(us / forward[longest] * widths[longest], abs=1)


def test_tables_sort_by_number(it: Opened) -> None:
    heading = it.page.locator("#layer-table thead th", has_text="time")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    by_time = sorted(ROWS, key=lambda row: row.timing.median_us if row.timing else 0)
    assert it.column("layer-table", 1) == [row.layer for row in by_time]
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert it.column("layer-table", 1) == [row.layer for row in reversed(by_time)]


@pytest.mark.parametrize("clicks", [1, 2])
def test_rows_without_the_number_come_last_both_ways(it: Opened, clicks: int) -> None:
    for _ in range(clicks):
        it.page.locator("#layer-table thead th", has_text="share").locator("button").click()
    assert it.column("layer-table", 1)[-1] == "AlexNet"


def test_tables_sort_names_as_people_count(show: Any) -> None:
    it = show([replace(row, layer=row.layer.replace("conv", "conv1")) for row in ROWS if row.kind == "convolution"])
    it.page.locator("#layer-table thead th", has_text="layer").locator("button").click()
    assert it.column("layer-table", 1)[::3] == ["conv11", "conv12", "conv13", "conv14", "conv15"]


def test_tables_filter_by_all_words(it: Opened) -> None:
    it.page.fill("#filter-layer-table", "CONV2 backward")
    assert it.column("layer-table", 3) == ["backward_data", "backward_weight"]
    assert it.page.locator("[data-counts=layer-table]").inner_text() == "2 of 45 rows"
    it.page.fill("#filter-layer-table", "")
    assert len(it.column("layer-table", 1)) == 45


def test_hovering_the_roofline_names_the_layer(it: Opened) -> None:
    point_at(it.page.locator("#figure-roofline .trace.scatter .points path").first)
    text = it.page.locator("#figure-roofline .hoverlayer .hovertext").text_content()
    assert "conv" in text
    assert "of its roofline, compute-bound" in text


def test_hostile_names_are_shown_as_text(show: Any) -> None:
    rows = [replace(row, layer=HOSTILE) if row.layer == "conv2" else row for row in bench()]
    rows = changed(rows, pick(rows, "fc6"), failed(pick(rows, "fc6"), HOSTILE))
    it = show(rows)
    assert it.page.locator("img").count() == 0
    assert it.column("layer-table", 1).count(HOSTILE) == 3
    assert it.column("failed-table", 7) == [HOSTILE]
    ticks = it.page.locator("#figure-time .ytick text").all_text_contents()
    assert f"…{HOSTILE[1 - LONGEST :]}" in ticks
    bar = it.page.locator("#figure-time .trace.bars").first.locator("path").nth(3)
    point_at(bar)
    assert HOSTILE in it.page.locator("#figure-time .hoverlayer .hovertext").text_content().replace("\xa0", " ")


def test_only_harmless_buttons(it: Opened) -> None:
    it.page.hover("#figure-roofline")
    buttons = it.page.locator("#figure-roofline .modebar-btn")
    titles = [button.get_attribute("data-title") for button in buttons.all()]
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]


def test_the_setting_chosen_is_drawn(show: Any) -> None:
    rows = [*bench(), *bench("bf16")[:20]]
    it = show(rows)
    assert it.page.locator("#figure-time .bars .point path").count() == 44
    it.page.select_option("#setting", label="bf16")
    assert it.page.locator("#figure-time .bars .point path").count() == 20
    assert it.page.locator("#figure-roofline .scatterlayer .points path").count() == 20


def test_a_setting_without_times_says_so_and_the_next_is_drawn(show: Any) -> None:
    it = show([*bench(), *map(failed, bench(impl="sparse"))])
    it.page.select_option("#setting", label="sparse")
    assert "Nothing to draw" in it.page.locator("#figure-time").inner_text()
    it.page.select_option("#setting", label="dense")
    assert it.page.locator("#figure-time .bars .point path").count() == 44
    assert "Nothing to draw" not in it.page.locator("#figure-time").inner_text()


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def colours(page: Any) -> tuple[str, str]:
    """Of the page and of the first bar."""
    bar = "getComputedStyle(document.querySelector('#figure-time .bars .point path')).fill"
    return page.evaluate("getComputedStyle(document.body).backgroundColor"), page.evaluate(bar)


@pytest.mark.parametrize(("scheme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_page_and_figures_follow_the_reader_s_scheme(show: Any, scheme: str, palette: Any) -> None:
    it = show(ROWS, scheme=scheme)
    assert colours(it.page) == (rgb(palette["paper"]), rgb(palette["forward"]))


def test_paper_is_white(show: Any) -> None:
    it = show(ROWS, scheme="dark")
    it.page.emulate_media(media="print")
    it.page.wait_for_timeout(200)
    assert colours(it.page) == (rgb(LIGHT["paper"]), rgb(LIGHT["forward"]))


def test_a_report_without_figures_needs_no_library(show: Any) -> None:
    it = show([failed(row) for row in bench()])
    assert len(it.column("failed-table", 1)) == 44
    assert it.page.locator(".figure").count() == 0


@pytest.fixture(scope="module", params=[1300, 700])
def large(request: pytest.FixtureRequest, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The report of a network of 393 rows and 1,119 kernels, at the width of a desktop and of half a screen."""
    rows = convnext()
    launched = kernels(rows)
    by_key = {row.key: [it for it in launched if it.key == row.key] for row in rows if row.timing}
    material = Material(rows, ROOFS, rooflines(rows, ROOFS), shares(rows), by_key)
    texts = {
        "headlines": headlines(rows, ROOFS, launched),
        "passages": paragraphs(rows, ROOFS, launched),
        "material": material,
    }
    folder = tmp_path_factory.mktemp(f"large{request.param}")
    opened = open_report(browser, folder, rows, width=request.param, **texts)
    yield opened
    opened.page.close()
    assert opened.complaints == []


def test_a_large_network_has_a_small_page_that_fits(large: Opened) -> None:
    assert large.path.stat().st_size < 3_000_000
    page, width = large.page, large.page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for choice in ("folded", "every", "20"):
        page.select_option("#rows-layer-table", choice)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000


def test_the_answer_is_at_the_top(large: Opened) -> None:
    lines = large.page.locator("#answer li")
    assert lines.count() == 5
    assert lines.first.inner_text().startswith("The GPU is idle for 60% of the step (launch-bound)")
    box = lines.last.bounding_box()
    assert box and box["y"] + box["height"] < 900


def test_labels_of_a_large_network_do_not_overlap(large: Opened) -> None:
    ticks = large.page.locator("#figure-time .ytick text")
    boxes = [box for tick in ticks.all() if (box := tick.bounding_box())]
    assert 40 < len(boxes) < 60 and "stages.2.blocks.0-8.conv_dw" in ticks.all_text_contents()
    assert all(below["y"] >= above["y"] + above["height"] - 1 for above, below in pairwise(boxes))


def test_long_tables_show_the_slowest_and_open(large: Opened) -> None:
    page, count = large.page, large.page.locator("[data-counts=layer-table]")
    page.select_option("#rows-layer-table", "20")
    assert len(large.column("layer-table", 1)) >= 20 and count.inner_text() == "20 lines of 374 rows"
    visible = page.locator("#layer-table tbody:not([hidden]) tr:not([hidden]) > th")
    assert visible.first.inner_text() == "convnext_tiny"
    assert visible.nth(1).inner_text() == "stages.0.blocks.0-2.conv_dw"
    page.select_option("#rows-layer-table", "folded")
    assert 20 < visible.count() < 150
    page.select_option("#rows-layer-table", "every")
    assert visible.count() == 374 and count.inner_text() == "374 rows"
    page.select_option("#rows-layer-table", "20")
    page.fill("#filter-layer-table", "stages.2.blocks.5.norm backward")
    assert visible.all_inner_texts() == ["stages.2.blocks.5.norm"] * 2
    page.fill("#filter-layer-table", "")
    assert visible.count() == 20


def test_what_is_below_is_drawn_when_it_is_seen_or_the_page_is_idle(large: Opened) -> None:
    assert large.page.locator(".figure.js-plotly-plot").count() == large.page.locator(".figure").count() >= 4


def test_a_missing_library_is_named(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, run(), ROWS, ROOFS, (), assets="dir")
    path.with_name("plotly.min.js").unlink()
    page = browser.new_page()
    page.goto(path.as_uri())
    playwright.expect(page.locator("#figure-time")).to_contain_text("need plotly.min.js beside this page")
    assert page.locator("#layer-table tbody tr").count() == 45
    page.close()
