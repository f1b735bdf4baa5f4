"""The hardware counters that explanations read, by the names Nsight Compute gives them.

Percentages run from 0 to 100. ``elapsed`` counts the whole kernel, ``active`` only the cycles in which the unit's
multiprocessor had a warp.
"""

from __future__ import annotations

DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
"""Device memory: bytes read and written, of what it could move."""
L2 = "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"
"""L2 cache: sectors served, of what its slices could serve."""
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"
"""The data pipe of L1 and shared memory: wavefronts of shared memory accesses."""
FMA = "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
"""Ordinary multiply-add units, busy."""
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
"""Tensor cores, busy."""
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
"""Cycles in which a scheduler issued an instruction."""
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
"""Warps resident on a multiprocessor, of the most it can hold."""
BUSY = "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"
"""Time in which a multiprocessor had any warp, averaged over all of them: low where some stand empty."""
WAVES = "launch__waves_per_multiprocessor"
"""Blocks of the grid over blocks the device holds at once."""

L1_HIT = "l1tex__t_sector_hit_rate.pct"
"""Sectors found in L1. The tensor memory accelerator (TMA) of sm_90 goes past it uncounted."""
L2_HIT = "lts__t_sector_hit_rate.pct"
"""Sectors found in L2. A sector that comes from the far partition is looked up, and counted, twice."""
TMA_SECTORS = "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum"
"""Sectors that the tensor memory accelerator fetched."""
L2_READS = "lts__t_sectors_srcunit_tex_op_read.sum"
"""Sectors that multiprocessors read from L2."""
L2_WRITES = "lts__t_sectors_srcunit_tex_op_write.sum"
"""Sectors that multiprocessors wrote to L2."""
L2_FABRIC = "lts__t_sectors_srcunit_ltcfabric.sum"
"""Sectors that one L2 partition fetched from the other."""
DRAM_READS = "dram__sectors_read.sum"
"""Sectors read from device memory."""
DRAM_WRITES = "dram__sectors_write.sum"
"""Sectors written to device memory."""
DRAM_READ_RATE = "dram__bytes_read.sum.per_second"
"""Bytes a second read from device memory."""
DRAM_WRITE_RATE = "dram__bytes_write.sum.per_second"
"""Bytes a second written to device memory."""
SECTOR = 32
"""Bytes of a sector."""

FP_ADDS = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
FP_MULTIPLIES = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"
FP_FUSED = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"""Single-precision additions, multiplications and multiply-adds; what tensor cores compute is in none of them."""

LIMITS = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "threads per block",
    "launch__occupancy_limit_blocks": "blocks per multiprocessor",
    "launch__occupancy_limit_barriers": "barriers",
}
"""Blocks a multiprocessor can hold as far as one resource allows, and what that resource is called."""


def stall(reason: str) -> str:
    """The metric of one stall reason: the part of the warps' time spent in it, including time ``selected``."""
    return f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct"
