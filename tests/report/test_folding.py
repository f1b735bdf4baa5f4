"""Equal blocks are one line, and long tables are short unless all is wanted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.explain import rooflines, shares
from lamina.record import LayerRun
from lamina.report import layer_table
from lamina.report.columns import entries
from lamina.report.folding import LONG, SLOWEST, fold, folded_names, shorten

from .convnext import convnext
from .records import ROOFS, bench, failed, timed
from .test_table import text as printed


def named(*layers: str) -> list[LayerRun]:
    row = bench()[0]
    return [replace(row, layer=layer, place=place) for place, layer in enumerate(layers)]


def names(rows: list[LayerRun]) -> list[str]:
    return list(dict.fromkeys(folded_names(rows).values()))


def test_equal_blocks_that_follow_one_another_are_folded() -> None:
    rows = named("stem", "blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.b", "blocks.3.a", "blocks.3.b")
    assert names(rows) == ["stem", "blocks.0-1.a", "blocks.0-1.b", "blocks.3.a", "blocks.3.b"]


def test_a_block_with_another_layer_or_shape_stays() -> None:
    assert names(named("b.0.a", "b.0.down", "b.1.a", "b.2.a")) == ["b.0.a", "b.0.down", "b.1-2.a"]
    rows = named("b.0.a", "b.1.a")
    assert names([rows[0], replace(rows[1], output=(1,))]) == ["b.0.a", "b.1.a"]
    assert names([rows[0], failed(rows[1])]) == ["b.0.a", "b.1.a"]


def test_blocks_within_blocks() -> None:
    assert names(named(*(f"s.{i}.b.{j}.x" for i in range(2) for j in range(3)))) == ["s.0-1.b.0-2.x"]
    assert names(named("s.0.b.0.x", "s.0.b.1.x", "s.1.b.0.x")) == ["s.0.b.0-1.x", "s.1.b.0.x"]


def test_a_folded_line_sums_and_keeps_the_range() -> None:
    rows = [timed(row, us) for row, us in zip(named("b.0.x", "b.1.x", "b.2.x"), (10.0, 30.0, 20.0), strict=True)]
    (line,) = fold(entries(rows, rooflines(rows, ROOFS), shares(rows)))
    assert line.row.timing and line.row.timing.median_us == 60 and line.share == pytest.approx(1)
    assert line.row.flops == 3 * (rows[0].flops or 0) and len(line.members) == 3
    (alone,) = rooflines([timed(rows[0], 20.0)], ROOFS).values()
    assert line.roofline and line.roofline.share == pytest.approx(alone.share)
    assert line.row.gflops == pytest.approx(timed(rows[0], 20.0).gflops)


@given(st.lists(st.text("b.01", min_size=1, max_size=7), unique=True, max_size=12))
def test_folding_loses_no_row(layers: list[str]) -> None:
    rows = named(*layers)
    lines = fold(entries(rows, {}, {}))
    assert sum(max(len(line.members), 1) for line in lines) == len(rows)
    times = [line.row.timing.median_us for line in lines if line.row.timing]
    assert sum(times) == pytest.approx(sum(row.timing.median_us for row in rows if row.timing))


def test_hundreds_of_rows_are_few_lines_and_the_last_says_how_many() -> None:
    rows = convnext()
    shown = printed(layer_table(rows, rooflines(rows, ROOFS), shares(rows), brief=True), 240)
    lines = [line for line in shown.splitlines() if line.strip()]
    assert "stages.2.blocks.0-8.conv_dw" in shown and lines[-1].startswith("of 393 rows, ")
    assert lines[-1].strip().endswith("faster ones are hidden: --all shows every row")
    assert sum(line.lstrip().startswith(("stages", "stem", "head")) for line in lines) - 1 <= SLOWEST
    short = shorten(entries(rows, {}, {}))
    assert f"{short.folded} are folded" in lines[-1] and f"{short.hidden} faster" in lines[-1]
    assert short.lines[-1].row.phase == "step"
    times = [line.row.timing.median_us for line in short.lines[:-1] if line.row.timing]
    assert times == sorted(times, reverse=True) and len(times) == SLOWEST


def test_everything_is_shown_where_wanted_and_in_small_runs() -> None:
    rows = convnext()
    whole = printed(layer_table(rows))
    assert "--all" not in whole and "blocks.0-8" not in whole and "stages.2.blocks.4.mlp.act" in whole
    assert len(bench()) < LONG
    assert printed(layer_table(bench(), brief=True)) == printed(layer_table(bench()))


def test_settings_stay_side_by_side() -> None:
    rows = [row for batch in (8, 16) for row in convnext(batch)]
    lines = shorten(entries(rows, {}, {})).lines
    batches = [line.row.batch for line in lines if line.row.phase != "step"]
    assert batches == [8, 16] * SLOWEST


def test_failures_are_reported_below_a_short_table() -> None:
    rows = [failed(row, f"reason {place}") if place % 3 else row for place, row in enumerate(convnext())]
    shown = printed(layer_table(rows, brief=True))
    assert "failed: reason 1" in shown and "other reasons" in shown
    assert "other reasons" not in printed(layer_table(rows))
    assert printed(layer_table([failed(row) for row in convnext()], brief=True))
