"""Nsight Compute metrics that the rules read.

Percentages are from 0 to 100. ``elapsed`` is over all cycles of the kernel, ``active`` over the cycles in which the
unit's SM had a warp.
"""

from __future__ import annotations

DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
"""DRAM throughput: bytes read and written."""
L2 = "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"
"""L2 throughput: sectors served by its slices."""
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"
"""Data pipe of L1 and shared memory: wavefronts of shared memory accesses."""
FMA = "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
"""FMA pipe utilization."""
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
"""Tensor core pipe utilization."""
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
"""Issue slot utilization: cycles in which a scheduler issued an instruction."""
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
"""Achieved occupancy: warps resident on an SM, of the maximum."""
BUSY = "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"
"""Cycles in which an SM had any warp, averaged over all SMs: low if some are idle."""
WAVES = "launch__waves_per_multiprocessor"
"""Waves per SM: thread blocks of the grid over thread blocks resident at once."""

L1_HIT = "l1tex__t_sector_hit_rate.pct"
"""L1 hit rate. Loads by the tensor memory accelerator (TMA) of sm_90 bypass L1 and are not counted."""
L2_HIT = "lts__t_sector_hit_rate.pct"
"""L2 hit rate. A sector from the far L2 partition is looked up, and counted, twice."""
TMA_SECTORS = "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum"
"""Sectors loaded by the tensor memory accelerator (TMA)."""
L2_READS = "lts__t_sectors_srcunit_tex_op_read.sum"
"""Sectors that SMs read from L2."""
L2_WRITES = "lts__t_sectors_srcunit_tex_op_write.sum"
"""Sectors that SMs wrote to L2."""
L2_FABRIC = "lts__t_sectors_srcunit_ltcfabric.sum"
"""Sectors that one L2 partition fetched from the other."""
DRAM_READS = "dram__sectors_read.sum"
"""Sectors read from device memory."""
DRAM_WRITES = "dram__sectors_write.sum"
"""Sectors written to device memory."""
DRAM_READ_RATE = "dram__bytes_read.sum.per_second"
"""Bytes per second read from device memory."""
DRAM_WRITE_RATE = "dram__bytes_write.sum.per_second"
"""Bytes per second written to device memory."""
SECTOR = 32
"""Bytes per sector."""

FP_ADDS = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
FP_MULTIPLIES = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"
FP_FUSED = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"""FP32 add, multiply and FMA instructions per thread; none of them includes tensor core instructions."""

LIMITS = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "threads per block",
    "launch__occupancy_limit_blocks": "blocks per SM",
    "launch__occupancy_limit_barriers": "barriers",
}
"""Metrics for the thread blocks per SM that one resource permits, and the name of the resource."""


def stall(reason: str) -> str:
    """The metric of one warp state: its percentage of all warp time, that of state ``selected`` included."""
    return f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct"
