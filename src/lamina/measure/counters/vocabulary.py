"""The metrics lamina reads: what each means, in which unit, in which set, and which chips lack it.

Names are Nsight Compute's. Units are those it prints with ``--print-units base``; it gives none for cycles of
a data pipe, called wavefronts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.errors import UsageError, nearest

SETS = {
    "core": "time, instruction rate, occupancy, issue slots, L1 hits, use of L2, DRAM and tensor cores",
    "memory": "transactions, hit rates and utilisation from shared memory to DRAM",
    "stalls": "what warps wait for",
    "full": "all of these, and the use of each arithmetic unit",
}
"""Metric sets and what they show."""

PASSES = {"gh100": {"core": 1, "memory": 5, "stalls": 8, "full": 18}}
"""For each chip, how often Nsight Compute 2025.3 runs a kernel for each set. Other chips: unknown."""


@dataclass(frozen=True)
class Metric:
    """A hardware metric. ``absent`` names chips known to lack it; metrics of no set are read when asked for by name."""

    name: str
    unit: str
    meaning: str
    sets: tuple[str, ...] = ("full",)
    absent: tuple[str, ...] = ()


_CORE, _MEMORY, _STALLS, _NONE = ("core", "full"), ("memory", "full"), ("stalls", "full"), ()
_BOTH = ("core", "memory", "full")
_ACTIVE, _ELAPSED = "avg.pct_of_peak_sustained_active", "avg.pct_of_peak_sustained_elapsed"
_BEFORE_HOPPER = ("gv100", "ga100", "ad102")


def _stall(what: str, meaning: str, *absent: str) -> Metric:
    return Metric(f"smsp__warp_issue_stalled_{what}_per_warp_active.pct", "%", meaning, _STALLS, absent)


def _pipe(name: str, meaning: str) -> Metric:
    return Metric(f"{name}.{_ACTIVE}", "%", f"use of {meaning}")


def _sass(what: str, meaning: str) -> Metric:
    name = f"smsp__sass_thread_inst_executed_op_{what}_pred_on.sum"
    return Metric(name, "inst", f"{meaning}, counted per thread", absent=("gv100",))


METRICS: tuple[Metric, ...] = (
    Metric("gpu__time_duration.sum", "ns", "duration of the kernel", ("core", "memory", "stalls", "full")),
    Metric("sm__inst_executed.avg.per_cycle_active", "inst/cycle", "warp instructions executed per SM", _CORE),
    Metric("sm__inst_issued.avg.per_cycle_active", "inst/cycle", "warp instructions issued per SM"),
    Metric("smsp__inst_executed.sum", "inst", "warp instructions executed"),
    Metric("smsp__inst_issued.sum", "inst", "warp instructions issued, repetitions included"),
    Metric(f"sm__warps_active.{_ACTIVE}", "%", "achieved occupancy", _CORE),
    Metric("smsp__warps_eligible.avg.per_cycle_active", "warp", "warps ready to issue, per scheduler"),
    Metric("smsp__warps_eligible.sum.per_cycle_active", "warp", "warps ready to issue, over the whole GPU"),
    Metric(f"smsp__issue_active.{_ACTIVE}", "%", "cycles in which a scheduler issues", ("core", "stalls", "full")),
    Metric(f"smsp__cycles_active.{_ELAPSED}", "%", "cycles with a warp in flight"),
    _stall("no_instruction", "waiting for instructions to be fetched"),
    _stall("wait", "waiting a fixed time for the previous result"),
    _stall("short_scoreboard", "waiting for shared memory or special functions"),
    _stall("long_scoreboard", "waiting for data from L1, L2 or DRAM"),
    _stall("tex_throttle", "the queue of the texture unit is full"),
    _stall("barrier", "waiting for other warps at a barrier"),
    _stall("membar", "waiting for a memory fence"),
    _stall("gmma", "waiting for the operands of an asynchronous tensor operation", *_BEFORE_HOPPER, "gb100"),
    _stall("misc", "other hardware reasons"),
    _stall("dispatch_stall", "issued, but held back by the dispatcher"),
    _stall("math_pipe_throttle", "the arithmetic unit is busy"),
    _stall("mio_throttle", "the queue of shared memory and special functions is full"),
    _stall("imc_miss", "waiting for a constant", "gb100"),
    _stall("drain", "at its end, waiting for stores to leave"),
    _stall("lg_throttle", "the queue of local and global memory is full"),
    _stall("not_selected", "ready, but another warp was chosen"),
    _stall("selected", "issuing: no stall"),
    _stall("sleeping", "asleep by its own wish"),
    _stall("branch_resolving", "waiting for the target of a branch"),
    Metric("l1tex__t_sector_hit_rate.pct", "%", "L1 hits among sectors; blind to TMA", _BOTH),
    Metric("lts__t_sector_hit_rate.pct", "%", "L2 hits among sectors", _MEMORY),
    Metric("lts__t_sector_op_read_hit_rate.pct", "%", "L2 hits among sectors read", _MEMORY),
    Metric("lts__t_sector_op_write_hit_rate.pct", "%", "L2 hits among sectors written", _MEMORY),
    Metric("lts__t_sectors_srcunit_tex_op_read.sum", "sector", "sectors of 32 bytes that L1 reads from L2", _MEMORY),
    Metric("lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum", "sector", "of these, hits in L2", _MEMORY),
    Metric("lts__t_sectors_srcunit_tex_op_write.sum", "sector", "sectors that L1 writes to L2", _MEMORY),
    Metric("lts__t_sectors_op_read.sum", "sector", "L2 reads of every origin, the other partition too", _MEMORY),
    Metric("lts__t_sectors_op_write.sum", "sector", "L2 writes of every origin, the other partition too", _MEMORY),
    Metric("lts__t_sectors_op_atom.sum", "sector", "L2 atomics with a result", _MEMORY),
    Metric("lts__t_sectors_op_red.sum", "sector", "L2 atomics without a result", _MEMORY),
    Metric("lts__t_sectors_srcnode_gpc.sum", "sector", "L2 traffic of the SMs alone", _MEMORY),
    Metric("lts__t_sectors_srcunit_ltcfabric.sum", "sector", "L2 traffic between the partitions of L2", _MEMORY),
    Metric(f"lts__t_sectors.{_ELAPSED}", "%", "use of L2 bandwidth", _BOTH),
    Metric("dram__sectors_read.sum", "sector", "sectors read from DRAM", _MEMORY, ("gb202",)),
    Metric("dram__sectors_write.sum", "sector", "sectors written to DRAM", _MEMORY, ("gb202",)),
    Metric("dram__bytes_read.sum.per_second", "byte/s", "DRAM read throughput", _BOTH),
    Metric("dram__bytes_write.sum.per_second", "byte/s", "DRAM write throughput", _BOTH),
    Metric(f"dram__throughput.{_ELAPSED}", "%", "use of DRAM bandwidth", _BOTH),
    Metric("l1tex__t_sectors.sum", "sector", "sectors looked up in L1; blind to TMA", _MEMORY),
    Metric("l1tex__t_bytes.sum.per_second", "byte/s", "bytes looked up in L1; blind to TMA", _MEMORY),
    Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "sectors asked of L1 by global loads", _MEMORY),
    Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum", "sector", "of these, hits in L1", _MEMORY),
    Metric(
        "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
        "sector",
        "sectors loaded by TMA, past the tags of L1",
        _MEMORY,
        _BEFORE_HOPPER,
    ),
    Metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "", "wavefronts of shared loads", _MEMORY),
    Metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "", "wavefronts of shared stores", _MEMORY),
    Metric(f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{_ELAPSED}", "%", "use of shared memory bandwidth", _MEMORY),
    Metric("smsp__sass_data_bytes_mem_shared_op_ld.sum.per_second", "byte/s", "shared load throughput", _NONE),
    Metric("smsp__sass_data_bytes_mem_shared_op_st.sum.per_second", "byte/s", "shared store throughput", _NONE),
    _pipe("smsp__pipe_fma_cycles_active", "the FP32 multiply-add units"),
    _pipe("sm__inst_executed_pipe_alu", "the integer and logic units"),
    _pipe("sm__inst_executed_pipe_lsu", "the load and store units"),
    _pipe("sm__inst_executed_pipe_xu", "the units of special functions and conversions"),
    _pipe("sm__inst_executed_pipe_tex", "the texture units"),
    _pipe("sm__inst_executed_pipe_cbu", "the branch units"),
    _pipe("sm__inst_executed_pipe_adu", "the address divergence units"),
    _pipe("sm__pipe_fp64_cycles_active", "the FP64 units"),
    Metric(f"sm__pipe_tensor_cycles_active.{_ACTIVE}", "%", "use of the tensor cores", _CORE),
    _sass("fadd", "FP32 additions"),
    _sass("fmul", "FP32 multiplications"),
    _sass("ffma", "FP32 multiply-adds"),
    Metric(
        f"smsp__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.{_ELAPSED}",
        "%",
        "FP32 instructions against their peak; blind to tensor cores",
        _NONE,
        ("gv100",),
    ),
    Metric("sm__ops_path_tensor_src_tf32_dst_fp32.sum", "", "operations of the tensor cores on TF32"),
    Metric("sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", "operations of the tensor cores on bfloat16"),
    Metric("sm__ops_path_tensor_src_fp16.sum", "", "operations of the tensor cores on float16"),
    Metric(
        "sm__inst_executed_pipe_tensor_op_gmma.sum",
        "inst",
        "asynchronous tensor instructions (wgmma)",
        absent=_BEFORE_HOPPER,
    ),
)
"""Every metric of the sets, and some more."""

LAUNCH: tuple[Metric, ...] = (
    Metric("launch__occupancy_limit_barriers", "block", "blocks per SM that barriers permit"),
    Metric("launch__occupancy_limit_blocks", "block", "blocks per SM that the chip permits"),
    Metric("launch__occupancy_limit_registers", "block", "blocks per SM that registers permit"),
    Metric("launch__occupancy_limit_shared_mem", "block", "blocks per SM that shared memory permits"),
    Metric("launch__occupancy_limit_warps", "block", "blocks per SM that warps permit"),
    Metric("launch__waves_per_multiprocessor", "", "how often the grid fills the GPU"),
    Metric("sm__maximum_warps_per_active_cycle_pct", "%", "theoretical occupancy"),
)
"""Facts of a launch that come with every set and cost no pass."""

_BY_NAME = {metric.name: metric for metric in (*METRICS, *LAUNCH)}


def metric(name: str) -> Metric:
    """The metric of this name. Raises UsageError for one that the vocabulary lacks."""
    if name not in _BY_NAME:
        raise UsageError(f"unknown metric {name!r}: {nearest(name, _BY_NAME)}")
    return _BY_NAME[name]


def select(asked: Sequence[str]) -> tuple[str, ...]:
    """Names of the metrics of some sets, or of single metrics, each once and in the vocabulary's order.

    Raises:
        UsageError: neither a set nor a metric.
    """
    sets = set(asked) & SETS.keys()
    singles = set(asked) - sets
    if unknown := sorted(singles - _BY_NAME.keys()):
        raise UsageError(f"unknown metric or set {unknown[0]!r}: {nearest(unknown[0], [*SETS, *_BY_NAME])}")
    return tuple(one.name for one in METRICS if one.name in singles or sets & set(one.sets))


def passes(asked: Sequence[str], chip: str) -> int | None:
    """Replay passes that one set costs on a chip, ``None`` where nobody has counted them."""
    return PASSES.get(chip, {}).get(asked[0]) if len(asked) == 1 else None
