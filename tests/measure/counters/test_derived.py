"""nvprof's figures against sums by hand, and against relations that hold between real counters."""

from pathlib import Path

import pytest

from lamina.measure.counters import METRICS, derived, parse, select
from lamina.measure.counters.derived import DERIVED

SAMPLE = (Path(__file__).parent / "data" / "full_h200.csv").read_text()
KERNELS = [{name: value for name, (value, _) in one.metrics.items()} for one in parse(SAMPLE, select(["full"]))]
STALL = "smsp__warp_issue_stalled_{}_per_warp_active.pct"
SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def test_formulas_use_known_metrics_and_aliases_once():
    assert {name for derived_metric in DERIVED for name in derived_metric.formula.metrics} <= {
        one.name for one in METRICS
    }
    aliases = [alias for derived_metric in DERIVED for alias in derived_metric.aliases]
    assert len(aliases) == len(set(aliases))


def test_without_counters_all_are_none():
    assert set(derived({}).values()) == {None}


@pytest.mark.parametrize("derived_metric", DERIVED, ids=lambda derived_metric: derived_metric.aliases[0])
def test_a_missing_metric_makes_a_derived_metric_none(derived_metric):
    complete = dict.fromkeys(derived_metric.formula.metrics, 2.0)
    assert derived(complete)[derived_metric.aliases[0]] is not None
    for name in complete:
        assert derived({**complete, name: None})[derived_metric.aliases[0]] is None


def test_multiply_adds_count_twice():
    counters = {SASS.format("fadd"): 10.0, SASS.format("fmul"): 200.0, SASS.format("ffma"): 3000.0}
    assert derived(counters)["flop_count_sp"] == 6210.0


def test_transactions_include_atomics():
    sectors = {"read": 1.0, "write": 20.0, "atom": 300.0, "red": 4000.0}
    found = derived({f"lts__t_sectors_op_{name}.sum": value for name, value in sectors.items()})
    assert (found["l2_read_transactions"], found["l2_write_transactions"]) == (4301.0, 4320.0)


def test_throughput_of_l2_is_32_bytes_a_sector():
    found = derived({"lts__t_sectors_srcunit_tex_op_read.sum": 500.0, "gpu__time_duration.sum": 8000.0})
    assert found["l2_tex_read_throughput"] == pytest.approx(2e9)


def test_ratios_over_zero_are_none():
    name = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld"
    assert derived({f"{name}.sum": 0.0, f"{name}_lookup_hit.sum": 0.0})["global_hit_rate"] is None
    assert derived({STALL.format("selected"): 100.0, STALL.format("gmma"): 0.0})["stall_gmma"] is None


def test_overhead_of_replays():
    found = derived({"smsp__inst_issued.sum": 110.0, "smsp__inst_executed.sum": 100.0})
    assert found["inst_replay_overhead"] == pytest.approx(0.1)


def test_the_busiest_pipeline_counts():
    units = ("smsp__pipe_fma_cycles_active", "sm__inst_executed_pipe_alu", "sm__pipe_fp64_cycles_active")
    counters = {f"{unit}.avg.pct_of_peak_sustained_active": float(i) for i, unit in enumerate(units)}
    counters["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"] = 70.0
    assert derived(counters)["alu_fu_utilization"] == 70.0


@pytest.mark.parametrize("counters", KERNELS)
def test_stall_shares_of_a_real_kernel_are_complete(counters):
    shares = [value for name, value in derived(counters).items() if name.startswith("stall_")]
    assert len(shares) == 12
    # Reasons are read in several passes, whose runs differ a little.
    assert sum(shares) == pytest.approx(100, abs=5)


@pytest.mark.parametrize("counters", KERNELS)
def test_eligible_warps_are_those_of_one_multiprocessor(counters):
    whole_gpu = counters["smsp__warps_eligible.sum.per_cycle_active"]
    assert derived(counters)["eligible_warps_per_cycle"] == pytest.approx(whole_gpu / 132, rel=0.01)


@pytest.mark.parametrize("counters", KERNELS)
def test_occupancy_is_a_fraction(counters):
    found = derived(counters)
    assert 0 < found["achieved_occupancy"] <= counters["sm__maximum_warps_per_active_cycle_pct"] / 100
    assert found["ipc"] <= found["issued_ipc"] * 1.01
