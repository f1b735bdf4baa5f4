"""Bars of counters against sums and averages over the records themselves."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from lamina.record import Counter
from lamina.report.figures import FIGURES, STEP

from .reading import COUNTERS, KERNELS, ROWS, averaged, bars, draw, made, reason, summed, words

MATERIAL = made()
LAYERS = ("conv2", "relu2")
WHERE = pytest.mark.parametrize(("batch", "phase"), [(16, STEP), (64, STEP), (64, "backward_data")])
EXPECTED: dict[str, dict[str, Any]] = {
    "fp-operations": {},
    "tensor-operations": {"TF32": lambda layer, **at: summed("sm__ops_path_tensor_src_tf32_dst_fp32.sum", layer, **at)},
    "ipc": {"executed": lambda layer, **at: averaged("sm__inst_executed.avg.per_cycle_active", layer, **at)},
    "occupancy": {
        "achieved": lambda layer, **at: averaged("sm__warps_active.avg.pct_of_peak_sustained_active", layer, **at)
    },
    "hit-rates": {"L2": lambda layer, **at: averaged("lts__t_sector_hit_rate.pct", layer, **at)},
    "far-transactions": {
        "DRAM reads": lambda layer, **at: summed("dram__sectors_read.sum", layer, **at),
        "DRAM writes": lambda layer, **at: summed("dram__sectors_write.sum", layer, **at),
    },
    "far-throughput": {
        "DRAM reads": lambda layer, **at: averaged("dram__bytes_read.sum.per_second", layer, **at),
        "DRAM writes": lambda layer, **at: averaged("dram__bytes_write.sum.per_second", layer, **at),
    },
    "dram-bytes": {
        "DRAM reads": lambda layer, **at: 32 * summed("dram__sectors_read.sum", layer, **at),
        "DRAM writes": lambda layer, **at: 32 * summed("dram__sectors_write.sum", layer, **at),
    },
}


@WHERE
@pytest.mark.parametrize("figure", [figure for figure, series in EXPECTED.items() if series])
def test_bars_are_what_was_counted(figure: str, batch: int, phase: str) -> None:
    found = bars(draw(figure, MATERIAL, batch, phase))
    for name, expected in EXPECTED[figure].items():
        for layer in LAYERS:
            assert found[name, layer] == pytest.approx(expected(layer, batch=batch, phase=phase)), (name, layer)


SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op"
BYTES = "smsp__sass_data_bytes_mem_shared_op"
TEX = "lts__t_sectors_srcunit_tex_op"
RARER = {
    ("ipc", "issued"): ("sm__inst_issued.avg.per_cycle_active", averaged, 1),
    ("occupancy", "possible with these kernels"): ("sm__maximum_warps_per_active_cycle_pct", averaged, 1),
    ("eligible-warps", "eligible warps"): ("smsp__warps_eligible.avg.per_cycle_active", averaged, 4),
    ("near-transactions", "shared loads"): (f"{SHARED}_ld.sum", summed, 1),
    ("near-transactions", "shared stores"): (f"{SHARED}_st.sum", summed, 1),
    ("near-transactions", "L1 sectors"): ("l1tex__t_sectors.sum", summed, 1),
    ("near-throughput", "shared loads"): (f"{BYTES}_ld.sum.per_second", averaged, 1),
    ("near-throughput", "shared stores"): (f"{BYTES}_st.sum.per_second", averaged, 1),
    ("near-throughput", "L1"): ("l1tex__t_bytes.sum.per_second", averaged, 1),
    ("far-transactions", "L2 reads"): (f"{TEX}_read.sum", summed, 1),
    ("far-transactions", "L2 writes"): (f"{TEX}_write.sum", summed, 1),
    ("tensor-operations", "bfloat16"): ("sm__ops_path_tensor_src_bf16_dst_fp32.sum", summed, 1),
    ("tensor-operations", "float16"): ("sm__ops_path_tensor_src_fp16.sum", summed, 1),
}
"""Counters that the small profile lacks: figure and series, with metric, sum or average, and weight."""


@pytest.fixture(scope="module")
def more() -> list[Counter]:
    """Every one of them, with a value of its own for each kernel."""
    random = Random("more")
    return [
        Counter(it.key, it.invocation, metric, random.uniform(1, 90), "")
        for metric, _, _ in RARER.values()
        for it in KERNELS
    ]


@pytest.mark.parametrize(("figure", "series"), RARER)
def test_rarer_counters_are_drawn_where_they_were_read(more: list[Counter], figure: str, series: str) -> None:
    metric, together, weight = RARER[figure, series]
    found = bars(draw(figure, made(counters=[*COUNTERS, *more]), 64, "forward"))
    for layer in LAYERS:
        expected = weight * together(metric, layer, batch=64, phase="forward", of=more)
        assert found[series, layer] == pytest.approx(expected)


@pytest.mark.parametrize("way", ["read", "write"])
def test_throughput_of_l2_is_bytes_over_time(more: list[Counter], way: str) -> None:
    found = bars(draw("far-throughput", made(counters=[*COUNTERS, *more])))
    sectors, ns = summed(f"{TEX}_{way}.sum", "conv2", of=more), summed("gpu__time_duration.sum", "conv2")
    assert found[f"L2 {way}s", "conv2"] == pytest.approx(32 * sectors / (ns * 1e-9))


def test_multiply_adds_count_twice() -> None:
    counters = [replace(it, value=7.0) if "ffma" in it.metric else it for it in COUNTERS]
    counters += [
        replace(it, metric=it.metric.replace("ffma", other), value=value)
        for it in COUNTERS
        if "ffma" in it.metric
        for other, value in (("fadd", 3.0), ("fmul", 5.0))
    ]
    found = bars(draw("fp-operations", made(counters=counters)))
    assert found["multiply-add (2 each)", "conv2"] == pytest.approx(6 * 14)
    assert found["multiply", "conv2"] == pytest.approx(6 * 5)
    assert found["add", "relu2"] == pytest.approx(2 * 3)


def test_compulsory_bytes_stand_beside_those_moved() -> None:
    found = bars(draw("dram-bytes", MATERIAL, 64))
    expected = sum(row.bytes or 0 for row in ROWS if row.layer == "conv2" and row.batch == 64)
    assert found["compulsory", "conv2"] == pytest.approx(expected)


def test_allocated_bytes_are_the_highest_of_the_phases() -> None:
    rows = [row for row in ROWS if row.layer == "conv2" and row.batch == 16]
    found = bars(draw("allocated", MATERIAL))
    assert found["while it ran", "conv2"] == pytest.approx(max(row.peak_bytes or 0 for row in rows))
    assert found["when it ended", "conv2"] == pytest.approx(max(row.live_bytes or 0 for row in rows))
    (forward,) = (row for row in rows if row.phase == "forward")
    assert bars(draw("allocated", MATERIAL, phase="forward"))["while it ran", "conv2"] == forward.peak_bytes


def test_utilization_is_the_average_of_each_unit() -> None:
    plot = draw("utilization", MATERIAL, 64)
    heat = plot["data"][0]
    column = plot["layout"]["xaxis"]["ticktext"].index("DRAM")
    expected = [averaged("dram__throughput.avg.pct_of_peak_sustained_elapsed", layer, batch=64) for layer in LAYERS]
    assert [row[column] for row in heat["z"][:2]] == pytest.approx(expected)


def test_stalls_leave_out_the_warps_that_issue() -> None:
    found = bars(draw("stalls", MATERIAL))
    for layer in LAYERS:
        waiting = averaged("smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct", layer)
        issuing = averaged("smsp__warp_issue_stalled_selected_per_warp_active.pct", layer)
        assert found["data from L1, L2 or DRAM", layer] == pytest.approx(100 * waiting / (100 - issuing))


def test_the_smallest_stalls_stand_together() -> None:
    reasons = ("barrier", "membar", "wait", "short_scoreboard", "gmma", "math_pipe_throttle", "mio_throttle",
               "not_selected", "lg_throttle", "drain", "no_instruction", "imc_miss", "tex_throttle")  # fmt: skip
    counters = [
        replace(it, metric=it.metric.replace("long_scoreboard", reason), value=place + 1.0)
        for it in COUNTERS
        if "long_scoreboard" in it.metric
        for place, reason in enumerate(reasons)
    ]
    counters += [replace(it, value=0.0) if "selected" in it.metric else it for it in COUNTERS]
    found = bars(draw("stalls", made(counters=counters)))
    series = {name for name, _ in found}
    assert len(series) == 8
    shown = sum(value for (_, layer), value in found.items() if layer == "conv2")
    scoreboard = averaged("smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct", "conv2")
    assert shown == pytest.approx(sum(range(1, len(reasons) + 1)) + scoreboard)
    assert found["something else", "conv2"] > 0


def test_what_was_not_counted_is_absent_and_never_zero() -> None:
    plot = draw("hit-rates", MATERIAL)
    found = bars(plot)
    assert ("L1", "relu2") not in found
    assert ("L1", "conv2") in found
    assert not [key for key in found if key[1] == "relu3"]
    assert words(plot).count("no kernels") == 1
    assert 0 not in found.values()


def test_a_counter_that_no_layer_has_stands_in_the_legend() -> None:
    legend = [trace["name"] for trace in draw("occupancy", MATERIAL)["data"] if trace["type"] == "bar"]
    assert legend == ["achieved", "possible with these kernels (not counted)"]


def test_a_unit_that_was_not_counted_is_a_dash() -> None:
    plot = draw("utilization", MATERIAL)
    column = plot["layout"]["xaxis"]["ticktext"].index("L2")
    assert [row[column] for row in plot["data"][0]["z"]] == [None, None, None]
    dashes = next(trace for trace in plot["data"][1:] if trace["textfont"]["color"] == "muted")
    assert dashes["text"].count("–") == len(dashes["text"]) > 3


@pytest.mark.parametrize("figure", ["near-throughput", "near-transactions", "eligible-warps"])
def test_a_figure_without_its_counters_says_which(figure: str) -> None:
    assert reason(figure, MATERIAL).startswith("nothing here was counted that shows it: ")


def test_a_run_without_counters_says_how_to_get_them() -> None:
    bare = made(ROWS, KERNELS, [])
    for figure in [*EXPECTED, "utilization", "stalls"]:
        assert "--counters full" in reason(figure, bare), figure


def test_a_counter_of_most_kernels_missing_is_no_average() -> None:
    longest = max(
        (it for it in KERNELS if it.key.layer == "conv2" and it.key.batch == 16), key=lambda it: it.duration_us
    )
    gone = [
        replace(it, value=None) if (it.key, it.invocation) == (longest.key, longest.invocation) else it
        for it in COUNTERS
    ]
    assert ("DRAM reads", "conv2") not in bars(draw("far-transactions", made(counters=gone)))
    assert FIGURES["far-transactions"].figure(made(counters=gone).scene(next(iter(MATERIAL.settings)))).plot
