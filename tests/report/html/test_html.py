import json
import re
from base64 import b64decode
from dataclasses import replace
from gzip import decompress
from html.parser import HTMLParser
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import UsageError
from lamina.explain import findings, rooflines, shares
from lamina.record import LayerRun
from lamina.report.html import label, write_report
from lamina.report.palette import PHASES

from ..records import ROOFS, bench, changed, epochs, failed, pick, run, whole_step

HOSTILE = "</script><img src=x onerror=\"alert('1')\"> & {{ 7*7 }} 畳み込み"


class Page(HTMLParser):
    """A report taken apart: its tags, the text of its tables, and its embedded data."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.data = ""
        self.text = ""
        self._in_data = self._in_script = self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._in_script = self._in_script or tag in ("script", "style")
        self._in_data = self._in_data or attributes.get("id") == "figures"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._in_data = self._in_script = False
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data
        elif not self._in_script:
            self.text += data + " "
            if self._in_cell:
                self.rows[-1][-1] += data.strip()

    def frames(self) -> dict[str, Any]:
        """The figures, as the page unpacks them."""
        frames: dict[str, Any] = json.loads(decompress(b64decode(self.data)))["frames"]
        return frames

    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.tags}

    def options(self) -> list[str | None]:
        """Values of everything that can be selected."""
        return [attributes["value"] for tag, attributes in self.tags if tag == "option"]


def report(tmp_path: Path, rows: list[LayerRun], of: Any = None, **more: Any) -> Page:
    path = tmp_path / "report.html"
    found, more = findings(rows, ROOFS), {"assets": "dir"} | more
    assert write_report(
        path, of or run(), rows, ROOFS, found, rooflines(rows, ROOFS), shares(rows), **more
    ) == path  # fmt: skip
    return Page(path.read_text(encoding="utf-8"))


def test_every_timed_row_is_in_the_table(tmp_path: Path) -> None:
    rows = [*bench(), whole_step(bench(), 44_000)]
    page = report(tmp_path, rows)
    assert page.rows[0][:4] == ["layer", "kind", "phase", "time"]
    assert [row[:3] for row in page.rows[1:]] == [[row.layer, row.kind, row.phase] for row in rows]


def test_rows_without_a_time_have_a_section_of_their_own(tmp_path: Path) -> None:
    rows = bench()
    rows = changed(rows, pick(rows, "fc6"), failed(pick(rows, "fc6"), "out of memory"))
    page = report(tmp_path, rows)
    assert "failed" in page.ids()
    assert page.rows[-1] == ["fc6", "linear", "forward", "dense", "fp32", "failed", "out of memory"]
    assert "1 phase without a time" in page.text
    assert "failed" not in report(tmp_path, bench()).ids()


def test_findings_are_sentences_with_their_evidence(tmp_path: Path) -> None:
    rows = bench()
    page = report(tmp_path, rows)
    for finding in findings(rows, ROOFS):
        assert finding.claim in page.text
        for name in finding.evidence:
            assert name in page.text


def test_provenance_is_complete(tmp_path: Path) -> None:
    page = report(tmp_path, bench())
    for fact in (
        *("lamina bench alexnet --batch 128 --precision fp32,bf16 --device cuda", "4be1c7d+dirty", "580.65"),
        *("2026-01-15T09:02:10+00:00", "phases.backward", "Example GPU 80GB", "cupti", "cold", "781 TFLOP/s"),
        "key 'algo' of conv2 has no effect here",
    ):
        assert fact in page.text, fact
    assert "ncu" not in page.text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    rows = [replace(row, layer=f"{row.layer} {HOSTILE}") if row.layer == "conv2" else row for row in bench()]
    rows = changed(rows, rows[0], failed(rows[0], HOSTILE))
    page = report(tmp_path, rows, of=replace(run(), target=HOSTILE, command=HOSTILE, remarks=(HOSTILE,)))
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count("{{ 7*7 }}") >= 8
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert page.frames().keys() == {"time", "share", "roofline"}
    assert not set("<>&'") & set(page.data)


def test_nothing_points_outside(tmp_path: Path) -> None:
    page = report(tmp_path, [*bench(), *bench("bf16")], epochs=epochs())
    links = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert [link for link in links if link and not link.startswith("#")] == ["plotly.min.js"]
    assert {link[1:] for link in links if link and link.startswith("#")} <= page.ids()
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_inline_is_one_file_and_dir_shares_the_library(tmp_path: Path) -> None:
    report(tmp_path, bench(), assets="inline")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    inline = (tmp_path / "report.html").stat().st_size
    report(tmp_path, bench(), assets="dir")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "plotly.min.js"}
    assert (tmp_path / "report.html").stat().st_size < 150_000 < 1_500_000 < inline < 2_200_000


def test_unknown_assets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="assets 'cdn': expected 'inline' or 'dir'"):
        write_report(tmp_path / "r.html", run(), bench(), ROOFS, (), assets="cdn")  # type: ignore[arg-type]


def test_each_setting_has_a_card_a_choice_and_figures(tmp_path: Path) -> None:
    page = report(tmp_path, [*bench(), *bench("bf16", "nhwc")])
    assert page.options() == ["0", "1", "step", *PHASES]
    shown = {name: len(frames) for name, frames in page.frames().items()}
    assert shown == {"time": 2, "batches": 1, "share": 1, "roofline": 2}
    assert "fp32 · nchw" in page.text
    assert "bf16 · nhwc" in page.text
    assert report(tmp_path, bench()).options() == ["step", *PHASES]
    assert report(tmp_path, [row for row in bench() if row.phase == "forward"]).options() == []


def test_a_card_sums_its_phases(tmp_path: Path) -> None:
    rows = bench()
    total = sum(row.timing.median_us for row in rows if row.timing)
    forward = sum(row.timing.median_us for row in rows if row.timing and row.phase == "forward")
    page = report(tmp_path, [*rows, whole_step(rows, 44_000)])
    words = " ".join(page.text.split())
    assert f"Sum of the layers {total / 1e3:.1f} ms 18 layers forward {forward / 1e3:.1f} ms" in words
    assert "whole step at once 44.0 ms" in words


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    assert "may not be all of it" in report(tmp_path, bench(), of=run("interrupted")).text
    assert "may not be all of it" not in report(tmp_path, bench()).text


def test_training_curves_come_with_epochs(tmp_path: Path) -> None:
    page = report(tmp_path, bench(), epochs=epochs(12))
    assert {"training", "figure-training"} <= page.ids()
    assert page.rows[-1][0] == "12"
    assert "training" not in report(tmp_path, bench()).ids()


def test_cells_sort_by_number_and_what_is_none_last(tmp_path: Path) -> None:
    rows = [*bench(), whole_step(bench(), 44_000)]
    diverged = replace(epochs(1)[0], train_loss=nan)
    keys = [a["data-key"] for _, a in report(tmp_path, rows, epochs=[diverged]).tags if "data-key" in a]
    assert keys[0] == str(rows[0].timing and rows[0].timing.median_us)
    epoch = keys[-8:]
    assert epoch[:4] == ["1", "391", "0.1", ""]
    assert "None" not in keys
    assert keys[:-8].count("") == 4  # share, rates and roof of the whole step


def test_headings_are_in_order(tmp_path: Path) -> None:
    page = report(tmp_path, [*bench(), *bench("bf16")], epochs=epochs())
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


@pytest.mark.parametrize("rows", [[], [failed(row) for row in bench()]], ids=["none", "all failed"])
def test_a_run_without_a_time_still_has_a_report(tmp_path: Path, rows: list[LayerRun]) -> None:
    path = write_report(tmp_path / "r.html", run("failed"), rows, None, ())
    page = Page(path.read_text(encoding="utf-8"))
    assert "AlexNet" in page.text
    assert page.frames() == {}
    assert path.stat().st_size < 100_000


def test_labels() -> None:
    assert label(()) == ""
    assert label((("impl", "dense"), ("batch", "64"), ("clock", None))) == "dense · batch 64"
