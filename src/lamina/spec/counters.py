"""The metrics that lamina collects: meaning, unit, sets, and the GPUs that do not have them.

Names are Nsight Compute's. Units are those of ``--print-units base``, which has none for wavefronts (cycles of a data
pipe).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.errors import UsageError, nearest

SETS = {
    "core": "time, instruction rate, occupancy, issue slots, L1 hit rate, L2, DRAM and tensor core utilization",
    "memory": "transactions, hit rates and utilization from shared memory to DRAM",
    "stalls": "warp stall reasons",
    "full": "all of these, and the utilization of each pipeline",
}
"""Metric sets and their contents."""

PASSES = {"gh100": {"core": 1, "memory": 5, "stalls": 8, "full": 18}}
"""Replay passes of Nsight Compute 2025.3 per chip and set; unknown for other chips."""


@dataclass(frozen=True)
class Metric:
    """A hardware metric. ``absent`` lists chips without it; metrics of no set are collected if requested by name."""

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
    return Metric(f"{name}.{_ACTIVE}", "%", f"utilization of {meaning}")


def _sass(what: str, meaning: str) -> Metric:
    name = f"smsp__sass_thread_inst_executed_op_{what}_pred_on.sum"
    return Metric(name, "inst", f"{meaning}, counted per thread", absent=("gv100",))


METRICS: tuple[Metric, ...] = (
    Metric("gpu__time_duration.sum", "ns", "duration of the kernel", ("core", "memory", "stalls", "full")),
    Metric("sm__inst_executed.avg.per_cycle_active", "inst/cycle", "warp instructions executed per SM", _CORE),
    Metric("sm__inst_issued.avg.per_cycle_active", "inst/cycle", "warp instructions issued per SM"),
    Metric("smsp__inst_executed.sum", "inst", "warp instructions executed"),
    Metric("smsp__inst_issued.sum", "inst", "warp instructions issued, replays included"),
    Metric(f"sm__warps_active.{_ACTIVE}", "%", "achieved occupancy", _CORE),
    Metric("smsp__warps_eligible.avg.per_cycle_active", "warp", "warps ready to issue, per scheduler"),
    Metric("smsp__warps_eligible.sum.per_cycle_active", "warp", "warps ready to issue, over the whole GPU"),
    Metric(f"smsp__issue_active.{_ACTIVE}", "%", "cycles in which a scheduler issues", ("core", "stalls", "full")),
    Metric(f"smsp__cycles_active.{_ELAPSED}", "%", "cycles with a warp in flight"),
    _stall("no_instruction", "waiting for instruction fetch"),
    _stall("wait", "waiting on a fixed latency execution dependency"),
    _stall("short_scoreboard", "waiting for shared memory or special functions"),
    _stall("long_scoreboard", "waiting for data from L1, L2 or DRAM"),
    _stall("tex_throttle", "the TEX instruction queue is full"),
    _stall("barrier", "waiting for other warps at a barrier"),
    _stall("membar", "waiting for a memory barrier"),
    _stall("gmma", "waiting for the operands of an asynchronous tensor operation", *_BEFORE_HOPPER, "gb100"),
    _stall("misc", "other hardware reasons"),
    _stall("dispatch_stall", "the dispatcher holds back the instruction"),
    _stall("math_pipe_throttle", "the math pipeline is busy"),
    _stall("mio_throttle", "the MIO instruction queue (shared memory, special functions) is full"),
    _stall("imc_miss", "immediate constant cache miss", "gb100"),
    _stall("drain", "exited, waiting for its stores to complete"),
    _stall("lg_throttle", "the LG instruction queue (local and global memory) is full"),
    _stall("not_selected", "eligible, but the scheduler selected another warp"),
    _stall("selected", "issued an instruction: no stall"),
    _stall("sleeping", "in a nanosleep"),
    _stall("branch_resolving", "waiting for a branch target"),
    Metric("l1tex__t_sector_hit_rate.pct", "%", "L1 hit rate; excludes TMA", _BOTH),
    Metric("lts__t_sector_hit_rate.pct", "%", "L2 hit rate", _MEMORY),
    Metric("lts__t_sector_op_read_hit_rate.pct", "%", "L2 hit rate of reads", _MEMORY),
    Metric("lts__t_sector_op_write_hit_rate.pct", "%", "L2 hit rate of writes", _MEMORY),
    Metric("lts__t_sectors_srcunit_tex_op_read.sum", "sector", "sectors of 32 bytes read from L2 by L1", _MEMORY),
    Metric("lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum", "sector", "of these, hits in L2", _MEMORY),
    Metric("lts__t_sectors_srcunit_tex_op_write.sum", "sector", "sectors written to L2 by L1", _MEMORY),
    Metric("lts__t_sectors_op_read.sum", "sector", "L2 reads from all sources, including the other partition", _MEMORY),
    Metric(
        "lts__t_sectors_op_write.sum", "sector", "L2 writes from all sources, including the other partition", _MEMORY
    ),
    Metric("lts__t_sectors_op_atom.sum", "sector", "L2 atomics with a result", _MEMORY),
    Metric("lts__t_sectors_op_red.sum", "sector", "L2 atomics without a result", _MEMORY),
    Metric("lts__t_sectors_srcnode_gpc.sum", "sector", "L2 traffic of the SMs only", _MEMORY),
    Metric("lts__t_sectors_srcunit_ltcfabric.sum", "sector", "L2 traffic between its partitions", _MEMORY),
    Metric(f"lts__t_sectors.{_ELAPSED}", "%", "L2 bandwidth utilization", _BOTH),
    Metric("dram__sectors_read.sum", "sector", "sectors read from DRAM", _MEMORY, ("gb202",)),
    Metric("dram__sectors_write.sum", "sector", "sectors written to DRAM", _MEMORY, ("gb202",)),
    Metric("dram__bytes_read.sum.per_second", "byte/s", "DRAM read throughput", _BOTH),
    Metric("dram__bytes_write.sum.per_second", "byte/s", "DRAM write throughput", _BOTH),
    Metric(f"dram__throughput.{_ELAPSED}", "%", "DRAM bandwidth utilization", _BOTH),
    Metric("l1tex__t_sectors.sum", "sector", "sectors looked up in L1; excludes TMA", _MEMORY),
    Metric("l1tex__t_bytes.sum.per_second", "byte/s", "bytes looked up in L1; excludes TMA", _MEMORY),
    Metric(
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "sectors requested from L1 by global loads", _MEMORY
    ),
    Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum", "sector", "of these, hits in L1", _MEMORY),
    Metric(
        "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
        "sector",
        "sectors loaded by TMA, which bypass the L1 tags",
        _MEMORY,
        _BEFORE_HOPPER,
    ),
    Metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "", "wavefronts of shared loads", _MEMORY),
    Metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "", "wavefronts of shared stores", _MEMORY),
    Metric(
        f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{_ELAPSED}", "%", "shared memory bandwidth utilization", _MEMORY
    ),
    Metric("smsp__sass_data_bytes_mem_shared_op_ld.sum.per_second", "byte/s", "shared load throughput", _NONE),
    Metric("smsp__sass_data_bytes_mem_shared_op_st.sum.per_second", "byte/s", "shared store throughput", _NONE),
    _pipe("smsp__pipe_fma_cycles_active", "the FMA pipeline"),
    _pipe("sm__inst_executed_pipe_alu", "the ALU pipeline (integer and logic)"),
    _pipe("sm__inst_executed_pipe_lsu", "the LSU pipeline (load/store)"),
    _pipe("sm__inst_executed_pipe_xu", "the XU pipeline (special functions and conversions)"),
    _pipe("sm__inst_executed_pipe_tex", "the texture pipeline"),
    _pipe("sm__inst_executed_pipe_cbu", "the CBU pipeline (branches)"),
    _pipe("sm__inst_executed_pipe_adu", "the ADU pipeline (address divergence)"),
    _pipe("sm__pipe_fp64_cycles_active", "the FP64 pipeline"),
    Metric(f"sm__pipe_tensor_cycles_active.{_ACTIVE}", "%", "tensor core utilization", _CORE),
    _sass("fadd", "FP32 additions"),
    _sass("fmul", "FP32 multiplications"),
    _sass("ffma", "FP32 multiply-adds"),
    Metric(
        f"smsp__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.{_ELAPSED}",
        "%",
        "FP32 instructions relative to their peak; excludes tensor cores",
        _NONE,
        ("gv100",),
    ),
    Metric("sm__ops_path_tensor_src_tf32_dst_fp32.sum", "", "tensor core operations in TF32"),
    Metric("sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", "tensor core operations in bfloat16"),
    Metric("sm__ops_path_tensor_src_fp16.sum", "", "tensor core operations in float16"),
    Metric(
        "sm__inst_executed_pipe_tensor_op_gmma.sum",
        "inst",
        "asynchronous tensor instructions (wgmma)",
        absent=_BEFORE_HOPPER,
    ),
)
"""All metrics of the sets, and metrics of no set."""

LAUNCH: tuple[Metric, ...] = (
    Metric("launch__occupancy_limit_barriers", "block", "blocks per SM that barriers permit"),
    Metric("launch__occupancy_limit_blocks", "block", "blocks per SM that the chip permits"),
    Metric("launch__occupancy_limit_registers", "block", "blocks per SM that registers permit"),
    Metric("launch__occupancy_limit_shared_mem", "block", "blocks per SM that shared memory permits"),
    Metric("launch__occupancy_limit_warps", "block", "blocks per SM that warps permit"),
    Metric("launch__waves_per_multiprocessor", "", "waves per SM"),
    Metric("sm__maximum_warps_per_active_cycle_pct", "%", "theoretical occupancy"),
)
"""Launch metrics, which come with every set and need no pass."""

_BY_NAME = {metric.name: metric for metric in (*METRICS, *LAUNCH)}


def metric(name: str) -> Metric:
    """The metric of this name. Raises UsageError for an unknown one."""
    if name not in _BY_NAME:
        raise UsageError(f"unknown metric {name!r}: {nearest(name, _BY_NAME)}")
    return _BY_NAME[name]


def select(requested: Sequence[str]) -> tuple[str, ...]:
    """Names of the metrics of the requested sets and of single metrics, each once, in the order of ``METRICS``.

    Raises:
        UsageError: neither a set nor a metric.
    """
    sets = set(requested) & SETS.keys()
    singles = set(requested) - sets
    if unknown := sorted(singles - _BY_NAME.keys()):
        raise UsageError(f"unknown metric or set {unknown[0]!r}: {nearest(unknown[0], [*SETS, *_BY_NAME])}")
    return tuple(one.name for one in METRICS if one.name in singles or sets & set(one.sets))


def passes(requested: Sequence[str], chip: str) -> int | None:
    """Replay passes of one set on a chip; ``None`` if unknown."""
    return PASSES.get(chip, {}).get(requested[0]) if len(requested) == 1 else None
