"""nvprof's metrics, computed from the Nsight Compute metrics that replaced them.

Each is a formula over metrics that computes the value and prints itself for the documentation. If a metric is missing,
so is the derived one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

Read = Callable[[str], float | None]


class Formula(Protocol):
    """Computes a derived metric; ``None`` unless every metric has a value. ``str()`` gives the formula."""

    @property
    def metrics(self) -> tuple[str, ...]: ...

    def __call__(self, read: Read) -> float | None: ...


@dataclass(frozen=True)
class Sum:
    """``constant + weight x metric + ...``"""

    terms: tuple[tuple[float, str], ...]
    constant: float = 0

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(metric for _, metric in self.terms)

    def __call__(self, read: Read) -> float | None:
        total = self.constant
        for weight, metric in self.terms:
            if (value := read(metric)) is None:
                return None
            total += weight * value
        return total

    def __str__(self) -> str:
        constant = [f"{self.constant:g}"] if self.constant else []
        terms = [metric if weight == 1 else f"{weight:g} x {metric}" for weight, metric in self.terms]
        return " + ".join(constant + terms).replace("+ -1 x ", "- ")


@dataclass(frozen=True)
class Ratio:
    """``factor x above / below``; ``None`` if ``below`` is 0."""

    above: Sum
    below: Sum
    factor: float = 1

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.above.metrics, *self.below.metrics)

    def __call__(self, read: Read) -> float | None:
        above, below = self.above(read), self.below(read)
        return None if above is None or not below else self.factor * above / below

    def __str__(self) -> str:
        factor = "" if self.factor == 1 else f"{self.factor:g} x "
        return f"{factor}{_bracketed(self.above)} / {_bracketed(self.below)}"


@dataclass(frozen=True)
class Highest:
    """The highest of several metrics."""

    metrics: tuple[str, ...]

    def __call__(self, read: Read) -> float | None:
        known = [value for value in map(read, self.metrics) if value is not None]
        return max(known) if len(known) == len(self.metrics) else None

    def __str__(self) -> str:
        return f"max({', '.join(self.metrics)})"


def _bracketed(part: Sum) -> str:
    return f"({part})" if len(part.terms) + bool(part.constant) > 1 else str(part)


@dataclass(frozen=True)
class DerivedMetric:
    """One or several of nvprof's names for a metric, its unit here, and its formula."""

    aliases: tuple[str, ...]
    unit: str
    formula: Formula


def _plain(*metrics: str) -> Sum:
    return Sum(tuple((1, metric) for metric in metrics))


def _stall(*reasons: str) -> Ratio:
    # ncu includes issuing warps, nvprof excluded them: its percentages of the other states add up to 100.
    return Ratio(_plain(*map(_stalled, reasons)), Sum(((-1, _stalled("selected")),), 100), 100)


def _stalled(reason: str) -> str:
    return f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct"


def _per_second(weight: float, metric: str) -> Ratio:
    return Ratio(Sum(((weight, metric),)), _plain("gpu__time_duration.sum"), 1e9)


SCHEDULERS = 4
"""Warp schedulers per SM of every GPU since Volta."""
_SECTOR = 32  # bytes
_ATOMICS = ("lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum")
_ISSUED, _EXECUTED = "smsp__inst_issued.sum", "smsp__inst_executed.sum"
_ACTIVE, _ELAPSED = "avg.pct_of_peak_sustained_active", "avg.pct_of_peak_sustained_elapsed"
_GLOBAL = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld"
_TEX_READ, _TEX_WRITE = "lts__t_sectors_srcunit_tex_op_read", "lts__t_sectors_srcunit_tex_op_write.sum"
_SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
_FMA = f"smsp__pipe_fma_cycles_active.{_ACTIVE}"
_SASS = "smsp__sass_thread_inst_executed_op"

DERIVED: tuple[DerivedMetric, ...] = (
    DerivedMetric(("ipc", "executed_ipc"), "inst/cycle", _plain("sm__inst_executed.avg.per_cycle_active")),
    DerivedMetric(("issued_ipc",), "inst/cycle", _plain("sm__inst_issued.avg.per_cycle_active")),
    DerivedMetric(("issue_slot_utilization",), "%", _plain(f"smsp__issue_active.{_ACTIVE}")),
    DerivedMetric(("achieved_occupancy",), "", Sum(((0.01, f"sm__warps_active.{_ACTIVE}"),))),
    DerivedMetric(("sm_efficiency",), "%", _plain(f"smsp__cycles_active.{_ELAPSED}")),
    DerivedMetric(
        ("eligible_warps_per_cycle",), "warp", Sum(((SCHEDULERS, "smsp__warps_eligible.avg.per_cycle_active"),))
    ),
    DerivedMetric(("stall_inst_fetch",), "%", _stall("no_instruction")),
    DerivedMetric(("stall_exec_dependency",), "%", _stall("short_scoreboard", "wait")),
    DerivedMetric(("stall_memory_dependency",), "%", _stall("long_scoreboard")),
    DerivedMetric(("stall_texture",), "%", _stall("tex_throttle")),
    DerivedMetric(("stall_sync",), "%", _stall("barrier", "membar")),
    DerivedMetric(("stall_other",), "%", _stall("misc", "dispatch_stall", "branch_resolving")),
    DerivedMetric(("stall_pipe_busy",), "%", _stall("math_pipe_throttle", "mio_throttle")),
    DerivedMetric(("stall_constant_memory_dependency",), "%", _stall("imc_miss")),
    DerivedMetric(("stall_memory_throttle",), "%", _stall("drain", "lg_throttle")),
    DerivedMetric(("stall_not_selected",), "%", _stall("not_selected")),
    DerivedMetric(("stall_sleeping",), "%", _stall("sleeping")),
    DerivedMetric(("stall_gmma",), "%", _stall("gmma")),
    DerivedMetric(("tex_cache_hit_rate", "l1_cache_global_hit_rate"), "%", _plain("l1tex__t_sector_hit_rate.pct")),
    DerivedMetric(("global_hit_rate",), "%", Ratio(_plain(f"{_GLOBAL}_lookup_hit.sum"), _plain(f"{_GLOBAL}.sum"), 100)),
    DerivedMetric(("l2_tex_hit_rate",), "%", _plain("lts__t_sector_hit_rate.pct")),
    DerivedMetric(("l2_tex_read_hit_rate",), "%", _plain("lts__t_sector_op_read_hit_rate.pct")),
    DerivedMetric(("l2_tex_write_hit_rate",), "%", _plain("lts__t_sector_op_write_hit_rate.pct")),
    DerivedMetric(
        ("l2_l1_read_hit_rate",), "%", Ratio(_plain(f"{_TEX_READ}_lookup_hit.sum"), _plain(f"{_TEX_READ}.sum"), 100)
    ),
    DerivedMetric(("tex_cache_transactions",), "sector", _plain("l1tex__t_sectors.sum")),
    DerivedMetric(("tex_cache_throughput",), "byte/s", _plain("l1tex__t_bytes.sum.per_second")),
    DerivedMetric(("shared_load_transactions",), "wavefront", _plain(f"{_SHARED}_op_ld.sum")),
    DerivedMetric(("shared_store_transactions",), "wavefront", _plain(f"{_SHARED}_op_st.sum")),
    DerivedMetric(
        ("shared_load_throughput",), "byte/s", _plain("smsp__sass_data_bytes_mem_shared_op_ld.sum.per_second")
    ),
    DerivedMetric(
        ("shared_store_throughput",), "byte/s", _plain("smsp__sass_data_bytes_mem_shared_op_st.sum.per_second")
    ),
    DerivedMetric(("l2_tex_read_transactions", "l2_l1_read_transactions"), "sector", _plain(f"{_TEX_READ}.sum")),
    DerivedMetric(("l2_tex_write_transactions", "l2_l1_write_transactions"), "sector", _plain(_TEX_WRITE)),
    DerivedMetric(
        ("l2_tex_read_throughput", "l2_l1_read_throughput"), "byte/s", _per_second(_SECTOR, f"{_TEX_READ}.sum")
    ),
    DerivedMetric(("l2_tex_write_throughput", "l2_l1_write_throughput"), "byte/s", _per_second(_SECTOR, _TEX_WRITE)),
    DerivedMetric(("l2_read_transactions",), "sector", _plain("lts__t_sectors_op_read.sum", *_ATOMICS)),
    DerivedMetric(("l2_write_transactions",), "sector", _plain("lts__t_sectors_op_write.sum", *_ATOMICS)),
    DerivedMetric(("dram_read_transactions",), "sector", _plain("dram__sectors_read.sum")),
    DerivedMetric(("dram_write_transactions",), "sector", _plain("dram__sectors_write.sum")),
    DerivedMetric(("dram_read_throughput",), "byte/s", _plain("dram__bytes_read.sum.per_second")),
    DerivedMetric(("dram_write_throughput",), "byte/s", _plain("dram__bytes_write.sum.per_second")),
    DerivedMetric(("shared_utilization", "l1_shared_utilization"), "%", _plain(f"{_SHARED}.{_ELAPSED}")),
    DerivedMetric(("l2_utilization",), "%", _plain(f"lts__t_sectors.{_ELAPSED}")),
    DerivedMetric(("dram_utilization",), "%", _plain(f"dram__throughput.{_ELAPSED}")),
    DerivedMetric(("single_precision_fu_utilization",), "%", _plain(_FMA)),
    DerivedMetric(
        ("alu_fu_utilization",),
        "%",
        Highest(
            (
                _FMA,
                f"sm__inst_executed_pipe_alu.{_ACTIVE}",
                f"sm__pipe_fp64_cycles_active.{_ACTIVE}",
                f"sm__pipe_tensor_cycles_active.{_ACTIVE}",
            )
        ),
    ),
    DerivedMetric(("special_fu_utilization",), "%", _plain(f"sm__inst_executed_pipe_xu.{_ACTIVE}")),
    DerivedMetric(("ldst_fu_utilization",), "%", _plain(f"sm__inst_executed_pipe_lsu.{_ACTIVE}")),
    DerivedMetric(("tex_fu_utilization",), "%", _plain(f"sm__inst_executed_pipe_tex.{_ACTIVE}")),
    DerivedMetric(("cf_fu_utilization",), "%", _plain(f"sm__inst_executed_pipe_cbu.{_ACTIVE}")),
    DerivedMetric(("tensor_utilization",), "%", _plain(f"sm__pipe_tensor_cycles_active.{_ACTIVE}")),
    DerivedMetric(
        ("flop_count_sp",),
        "op",
        Sum(((1, f"{_SASS}_fadd_pred_on.sum"), (1, f"{_SASS}_fmul_pred_on.sum"), (2, f"{_SASS}_ffma_pred_on.sum"))),
    ),
    DerivedMetric(
        ("flop_count_tensor",),
        "op",
        _plain(
            "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
            "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
            "sm__ops_path_tensor_src_fp16.sum",
        ),
    ),
    DerivedMetric(
        ("flop_sp_efficiency",),
        "%",
        _plain(f"smsp__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.{_ELAPSED}"),
    ),
    DerivedMetric(("inst_replay_overhead",), "", Ratio(Sum(((1, _ISSUED), (-1, _EXECUTED))), _plain(_EXECUTED))),
)
"""nvprof's metrics; ``stall_gmma``, ``tensor_utilization`` and ``flop_count_tensor`` are newer than nvprof."""


def derived(counters: Mapping[str, float | None]) -> dict[str, float | None]:
    """All derived metrics of one kernel under each of nvprof's names, from its metrics by name.

    Stall percentages exclude the issuing warps, so they add up to 100 %. ``achieved_occupancy`` is from 0 to 1, other
    rates are in percent. A derived metric is ``None``, not 0, if one of its metrics is missing.
    """
    values = [(one, one.formula(counters.get)) for one in DERIVED]
    return {alias: value for one, value in values for alias in one.aliases}
