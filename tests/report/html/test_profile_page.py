"""The page of a profile in a real browser: figures, choices, paper."""

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from lamina.explain import findings, paragraphs
from lamina.record import LayerRun
from lamina.record.wording import place
from lamina.report.figures import FIGURES, Material
from lamina.report.html import write_report
from lamina.report.palette import DARK, LIGHT

from ..figures.reading import COUNTERS, KERNELS, ROWS, made
from ..records import ROOFS, run, whole_step

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or which("chromium") or which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install one or name it in $CHROMIUM"),
]

STEPS = [whole_step([row for row in ROWS if row.batch == batch], us) for batch, us in ((16, 300.0), (64, 400.0))]
ALL: list[LayerRun] = [*ROWS, *STEPS]
MATERIAL = made(ALL)
ABSENT = {"speedup", "near-throughput", "near-transactions", "eligible-warps"}
DRAWN = [name for name in FIGURES if name not in ABSENT]


def write(path: Path, of: Material) -> None:
    write_report(
        path,
        run(),
        of.rows,
        ROOFS,
        findings(of.rows, ROOFS, KERNELS, COUNTERS),
        of.rooflines,
        of.shares,
        material=of,
        passages=paragraphs(of.rows, ROOFS, KERNELS, COUNTERS),
        places=[place(setting) for setting in of.settings],
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the small profile, written once."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    write(path, MATERIAL)
    return path


@pytest.fixture
def show(browser: Any, path: Path) -> Iterator[Any]:
    """Opens a report; it may ask for nothing and complain of nothing."""
    pages, requests, complaints = [], [], []

    def show(width: int = 1280, scheme: str = "light", path: Path = path) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        page.on("request", lambda request: requests.append(request.url) if request.url != path.as_uri() else None)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        drawn(page)
        return page

    yield show
    for page in pages:
        page.close()
    assert complaints == []
    assert requests == []


def drawn(page: Any) -> None:
    """Wait until the last figure is there."""
    page.locator("#figure-kernels .bars .point path").first.wait_for(state="attached")


def bars(page: Any, figure: str) -> int:
    """How many bars a figure has that can be seen."""
    return sum(box is not None and box["width"] > 0 for box in boxes(page, figure))


def boxes(page: Any, figure: str) -> list[Any]:
    return [path.bounding_box() for path in page.locator(f"#figure-{figure} .bars .point path").all()]


@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_drawn_and_fits(show: Any, width: int) -> None:
    page = show(width)
    ids = [place.get_attribute("id") for place in page.locator(".figure").all()]
    assert sorted(ids) == sorted(f"figure-{name}" for name in DRAWN)
    assert page.locator(".figure.js-plotly-plot").count() == len(DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert bars(page, "timeline") == sum(it.key.batch == 16 for it in KERNELS)
    page.locator(".absent summary").click()
    said = page.locator(".absent").inner_text()
    assert all(FIGURES[name].title in said for name in ABSENT)


def test_the_batch_size_chosen_is_shown(show: Any) -> None:
    page = show()
    assert page.locator(".words:visible h3").all_inner_texts() == ["batch 16"]
    before = [box["width"] for box in boxes(page, "time")]
    page.select_option("#setting", label="batch 64")
    assert page.locator(".words:visible h3").all_inner_texts() == ["batch 64"]
    assert "400 µs" in page.locator(".words:visible").first.inner_text()
    assert [box["width"] for box in boxes(page, "time")] != before


def test_the_phase_chosen_is_shown(show: Any) -> None:
    page = show()
    page.select_option("#phase", "backward_weight")
    ticks = page.locator("#figure-dram-bytes .ytick text")
    ticks.nth(1).wait_for(state="detached")
    assert ticks.all_text_contents() == ["conv2"]
    page.locator("#figure-timeline .ytick text", has_text="forward").wait_for(state="detached")
    assert bars(page, "timeline") == 2
    page.select_option("#phase", "forward")
    page.locator("#figure-timeline .ytick text", has_text="forward").wait_for(state="attached")
    assert bars(page, "timeline") == 3


def test_what_one_choice_lacks_is_said_in_its_place(show: Any, tmp_path: Path) -> None:
    write(tmp_path / "report.html", made(ALL, counters=[it for it in COUNTERS if it.key.batch == 16]))
    page = show(path=tmp_path / "report.html")
    page.select_option("#setting", label="batch 64")
    place = page.locator("#figure-hit-rates", has_text="Nothing to draw in this setting")
    place.wait_for()
    assert "nothing here was counted that shows it" in place.inner_text()
    page.select_option("#setting", label="batch 16")
    page.locator("#figure-hit-rates .bars").first.wait_for(state="attached")


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize(("scheme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_series_and_shades_follow_the_scheme(show: Any, scheme: str, palette: Any) -> None:
    page = show(scheme=scheme)
    bar = "getComputedStyle(document.querySelector('#figure-kernels .bars .point path')).fill"
    assert page.evaluate(bar) == rgb(palette["series1"])
    scale = page.evaluate("document.getElementById('figure-utilization').data[0].colorscale[1][1]")
    assert scale == palette["heat"]


def test_on_paper_there_is_all_of_the_choice_and_no_controls(show: Any) -> None:
    page = show(scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_timeout(300)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(LIGHT["paper"])
    assert not page.locator(".controls").is_visible()
    assert page.locator("#waiting .shows").inner_text() == "batch 16 · all together"
    assert page.locator(".figure.js-plotly-plot").count() == len(DRAWN)
    assert len(page.pdf()) > 50_000
