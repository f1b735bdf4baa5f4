"""A stored profile as a page and as images."""

import gc
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from gzip import decompress
from pathlib import Path
from typing import Any

import pytest
from tests.report.records import ROOFS, profile, run, timed
from tests.report.test_study import STUDY

from lamina.errors import UsageError
from lamina.explain import findings, paragraphs
from lamina.measure.counters import derived
from lamina.pipeline.reports import Other, draw, material, read, summary, write
from lamina.record import Coverage, WhatIf
from lamina.report import units
from lamina.report.figures import FIGURES, STEP
from lamina.store import Store, open_store

ROWS, KERNELS, COUNTERS = profile()


def fill(store: Store, run_id: str, slower: float = 1.0) -> None:
    store.begin(replace(run(), id=run_id, verb="profile"))
    for row in ROWS:
        assert row.timing
        store.add(run_id, timed(row, slower * row.timing.median_us))
    store.add_roofs(run_id, ROOFS)
    store.add_kernels(run_id, KERNELS)
    store.add_counters(run_id, COUNTERS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "a.db") as store:
        fill(store, "first")
        yield store


def data(path: Path) -> Any:
    """Figures of a page, as they are embedded."""
    found = re.search(r'<script type="text/plain" id="figures">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found
    return json.loads(decompress(b64decode(found[1])))["frames"]


def test_metrics_of_a_row_are_sums_and_averages_of_its_kernels(store: Store) -> None:
    made = material(read(store, "first"))
    for key, counted in made.counted.items():
        of = [it for it in KERNELS if it.key == key or (key.phase == STEP and it.key._replace(phase=STEP) == key)]
        total = sum(it.duration_us for it in of)
        values = {(it.key, it.invocation, it.metric): it.value for it in COUNTERS}
        for metric in {it.metric for it in COUNTERS} if of else ():
            known = [values[it.key, it.invocation, metric] for it in of]
            if None in known:
                assert counted.get(metric) is None
                continue
            weights = [1.0 if metric.endswith(".sum") else it.duration_us / total for it in of]
            expected = sum(value * weight for value, weight in zip(known, weights, strict=True) if value is not None)
            assert counted[metric] == pytest.approx(expected), (key, metric)
        assert {name: counted[name] for name in derived({})} == derived(counted)
    assert {key.phase for key in made.counted} == {STEP, "forward", "backward_data", "backward_weight"}


def test_the_page_has_a_frame_for_each_batch_and_phase(store: Store, tmp_path: Path) -> None:
    frames = data(write(store, "first", tmp_path / "a.html", "dir"))
    assert {"time", "batches", "stalls", "timeline", "kernels", "allocated"} <= frames.keys()
    assert [set(choices) for choices in frames["stalls"]] == [{STEP, "forward", "backward_data", "backward_weight"}] * 2
    assert len(frames["batches"]) == 1
    assert "near-throughput" not in frames


def test_the_page_says_why_figures_are_missing(store: Store, tmp_path: Path) -> None:
    page = write(store, "first", tmp_path / "a.html", "dir").read_text()
    absent = page[page.index("Figures that this run cannot have") :]
    assert "Speedup against another run" in absent
    assert "Throughput near the cores" in absent
    assert "nothing here was counted that shows it: shared_load_throughput" in absent


def test_the_page_holds_what_explain_says(store: Store, tmp_path: Path) -> None:
    page = write(store, "first", tmp_path / "a.html", "dir").read_text()
    it = read(store, "first")
    found = findings(it.rows, it.roofs, it.kernels, it.counters)
    assert page.count('class="facts"') >= len(found)
    for finding in found:
        assert units.sentence(finding.claim).replace("'", "&#39;").replace("<", "&lt;") in page
    for passage in paragraphs(it.rows, it.roofs, it.kernels, it.counters):
        text = passage.text.removeprefix(f"{passage.setting}: ").removeprefix(passage.layer or "")
        assert units.sentence(text).replace("'", "&#39;") in page
    assert page.count('<div class="words" data-setting=') == 2


def test_against_another_run_there_are_speed_ups_and_a_table(store: Store, tmp_path: Path) -> None:
    fill(store, "slow", slower=2.0)
    path = write(store, "first", tmp_path / "a.html", "dir", Other(store, "slow"))
    (frame, _) = data(path)["speedup"]
    marks = [trace for trace in frame[STEP]["data"] if trace["mode"] == "markers"]
    ratios = [x for trace in marks for x in trace["x"]]
    assert ratios == pytest.approx([2.0] * len(ratios))
    page = path.read_text()
    table = page[page.index('<table id="comparison-table"') :]
    assert table[: table.index("</table>")].count("2.00x") == 2 * len(ratios)
    assert "(run slow)" in page
    assert "comparison-table" not in write(store, "first", tmp_path / "b.html", "dir").read_text()


def test_what_ifs_and_coverage_are_tables(store: Store, tmp_path: Path) -> None:
    before = ROWS[0].timing
    assert before
    half = replace(before, median_us=before.median_us / 2)
    change = WhatIf("fusion", "conv + relu", "conv2", "forward", "tf32", 16, before, before.median_us / 1.5, "-", half)
    store.add_what_if("first", change)
    store.add_what_if("first", replace(change, detail="conv + pool", after=None, reason="cannot be fused"))
    store.add_coverage("first", Coverage("dense", "tf32", "nchw", 16, 8, 990.0, {"stray<1>": 10.0}))
    page = write(store, "first", tmp_path / "a.html", "dir").read_text()
    row = page[page.index("conv + relu") :]
    assert "+50.0%" in row and "+100.0%" in row
    assert "cannot be fused" in page
    assert "99.00%" in page and "stray&lt;1&gt;" in page


def test_a_run_with_nothing_to_report_is_refused(store: Store, tmp_path: Path) -> None:
    store.begin(replace(run(), id="swept", verb="sweep"))
    with pytest.raises(UsageError, match="swept.*no layers, epochs or what-ifs.*lamina runs show swept"):
        write(store, "swept", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_latest_summary_is_that_of_the_latest_study(store: Store) -> None:
    with pytest.raises(UsageError, match="run first .*expected a study that has ended, one of 'lamina runs ls --verb"):
        summary(store, "latest")
    store.begin(replace(run(), id="study", verb="study", started="2026-01-15T10:00:00+00:00"))
    store.add_study("study", STUDY)
    store.begin(replace(run(), id="explained", verb="bench", started="2026-01-15T11:00:00+00:00"))
    assert summary(store, "latest") == summary(store, "study")


def test_collection_goes_on_afterwards(store: Store, tmp_path: Path) -> None:
    assert gc.isenabled()
    with pytest.raises(UsageError):
        write(store, "none such", tmp_path / "a.html")
    assert gc.isenabled()


def test_an_image_shows_the_largest_batch_by_default(store: Store, tmp_path: Path) -> None:
    largest = draw(store, "first", "stalls", tmp_path / "a.svg").read_bytes()
    assert draw(store, "first", "stalls", tmp_path / "b.svg", batch=64).read_bytes() == largest
    assert draw(store, "first", "stalls", tmp_path / "c.svg", batch=16).read_bytes() != largest
    assert draw(store, "first", "stalls", tmp_path / "d.svg", phase="forward").read_bytes() != largest


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"figure": "stals"}, "did you mean 'stalls'"),
        ({"phase": "forwards"}, "did you mean 'forward'"),
        ({"batch": 7}, "nothing at batch 7; expected one of: 16, 64"),
        ({"figure": "near-throughput"}, "cannot be drawn: nothing here was counted"),
        ({"figure": "speedup"}, "--against"),
    ],
)
def test_what_cannot_be_drawn_is_refused(store: Store, tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        draw(store, "first", path=tmp_path / "a.png", **({"figure": "stalls"} | more))
    assert not (tmp_path / "a.png").exists()


def test_a_grid_of_more_than_batches_is_refused(store: Store, tmp_path: Path) -> None:
    for row in ROWS:
        store.add("first", replace(row, precision="bf16"))
    with pytest.raises(UsageError, match="2 at batch 64"):
        draw(store, "first", "time", tmp_path / "a.png")
    assert draw(store, "first", "batches", tmp_path / "a.png").exists()


def test_every_figure_has_an_id_that_a_file_can_have() -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in FIGURES)
