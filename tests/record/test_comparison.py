from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lamina.record.comparison import agree, by_setting, grid, setting, value

from ..report.records import bench, changed, failed, pick


def test_a_run_of_one_setting_spans_no_grid() -> None:
    rows = bench()
    assert grid(rows) == ()
    assert by_setting(rows) == {(): tuple(rows)}


def test_the_grid_is_what_tells_rows_of_one_layer_and_phase_apart() -> None:
    rows = [*bench("fp32"), *bench("bf16"), *bench("bf16", layout="nhwc")]
    assert grid(rows) == ("precision", "layout")
    assert {place: len(members) for place, members in by_setting(rows).items()} == {
        (("precision", "fp32"), ("layout", "nchw")): 44,
        (("precision", "bf16"), ("layout", "nchw")): 44,
        (("precision", "bf16"), ("layout", "nhwc")): 44,
    }


def test_one_layer_computed_otherwise_makes_no_grid() -> None:
    rows = [replace(row, impl="eliminated") if row.layer == "conv2" else row for row in bench()]
    assert grid(rows) == ()


def test_a_row_without_a_time_stands_in_every_clock_s_setting() -> None:
    rows = [*bench(clock="events"), *bench(clock="cupti")]
    broken = failed(pick(bench(), "conv4"))
    rows = [*(row for row in rows if (row.layer, row.phase) != ("conv4", "forward")), broken]
    assert value(broken, "clock") is None
    assert {place: broken in members for place, members in by_setting(rows).items()} == {
        (("clock", "events"),): True,
        (("clock", "cupti"),): True,
    }


def test_a_setting_in_which_everything_failed_is_kept() -> None:
    rows = [*bench(), *map(failed, bench(impl="sparse"))]
    groups = by_setting(rows)
    assert [len(members) for members in groups.values()] == [44, 44]
    assert setting(rows[-1], ("impl",)) in groups


def test_settings_agree_where_both_are_known() -> None:
    cold, unknown, warm = (("l2", "cold"),), (("l2", None),), (("l2", "warm"),)
    assert agree(cold, cold)
    assert agree(cold, unknown)
    assert not agree(cold, warm)


@given(st.lists(st.sampled_from([*bench(), *bench("bf16"), *bench("bf16", batch=32)]), max_size=40))
def test_every_timed_row_has_exactly_one_setting(rows: list) -> None:
    homes = [row for members in by_setting(rows).values() for row in members]
    assert sorted(map(repr, homes)) == sorted(map(repr, rows))


def test_failing_moves_no_row_to_another_setting() -> None:
    rows = [*bench(), *bench("bf16")]
    broken = changed(rows, rows[0], failed(rows[0]))
    assert list(by_setting(broken)) == list(by_setting(rows))
