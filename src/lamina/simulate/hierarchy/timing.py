"""Device parameters in integer ticks, for the reference and the compiled simulator."""

from __future__ import annotations

import math
from typing import NamedTuple

from lamina.simulate.hierarchy.config import LINE, Device

TICK_SHIFT = 6
TICKS = 1 << TICK_SHIFT
"""Ticks per cycle. Integers make the two implementations bit-identical."""
FRACTION = 16
HORIZON = 4096
"""Maximum number of cycles that an event can be scheduled ahead; later events are rescheduled."""
SLACK = 32 * TICKS
"""How far ahead, in ticks, the L1 cache may reserve the lower levels."""


class Timing(NamedTuple):
    """All parameters of a device as integers; times in ticks. Shifts are base-2 logarithms of sizes.

    ``concurrent`` wavefronts saturate a SIMD; when that many run, each runs at ``valu_rate`` of its own rate and takes
    ``valu_pace`` of its own time, both in units of 2**-16.
    """

    cus: int
    simds: int
    valu_busy: int
    valu: int
    concurrent: int
    valu_rate: int
    valu_pace: int
    lds_busy: int
    lds: int
    scalar: int
    vmem_issue: int
    vmem_path: int
    in_order: int
    dispatch: int
    l1_sets: int
    l1_ways: int
    l1_hit: int
    l1_write: int
    l1_to_l2: int
    l1_fill: int
    l1_mshrs: int
    l1_interval: int
    translate: int
    page_shift: int
    tlb1_sets: int
    tlb1_ways: int
    tlb2_sets: int
    tlb2_ways: int
    tlb2_hit: int
    walkers: int
    walk: int
    walk_distance: int
    l2_sets: int
    l2_ways: int
    l2_banks: int
    l2_shift: int
    l2_hit: int
    l2_write: int
    l2_miss: int
    l2_mshrs: int
    l2_interval: int


class DramTiming(NamedTuple):
    """All parameters of a memory as integers; times in ticks. Shifts as from ``shift_of``."""

    banked: int
    channels: int
    shift: int
    latency: int
    interval: int
    banks: int
    row_shift: int
    rcd: int
    rp: int
    cl: int
    ras: int
    rrd: int
    faw: int
    controller: int
    channel_shift: int
    bank_shift: int


def ticks(cycles: float) -> int:
    """Cycles in ticks, rounded to nearest."""
    return round(cycles * TICKS)


def shift_of(count: int) -> int:
    """The base-2 logarithm of a power of two, -1 for other counts: a shift is much faster than a division."""
    return count.bit_length() - 1 if count & (count - 1) == 0 else -1


def timing_of(device: Device) -> Timing:
    """The integer parameters of a device, without its memory."""
    cu, l1, tlb, l2 = device.cu, device.l1, device.translation, device.l2
    concurrent = math.ceil(cu.valu_cycles / cu.valu_busy)
    slowdown = max(1.0, concurrent * cu.valu_busy / cu.valu_cycles)
    return Timing(
        cus=cu.count,
        simds=cu.simds,
        valu_busy=ticks(cu.valu_busy),
        valu=ticks(cu.valu_cycles),
        concurrent=concurrent,
        valu_rate=round(2**FRACTION / slowdown),
        valu_pace=round(2**FRACTION * slowdown),
        lds_busy=ticks(cu.lds_busy),
        lds=ticks(cu.lds_cycles),
        scalar=ticks(cu.scalar_cycles),
        vmem_issue=ticks(cu.vmem_issue),
        vmem_path=ticks(cu.vmem_path),
        in_order=int(cu.in_order_return),
        dispatch=ticks(device.dispatch_cycles),
        l1_sets=l1.bytes // (l1.ways * LINE),
        l1_ways=l1.ways,
        l1_hit=ticks(l1.hit),
        l1_write=ticks(l1.write),
        l1_to_l2=ticks(l1.to_l2),
        l1_fill=ticks(l1.fill),
        l1_mshrs=l1.mshrs,
        l1_interval=max(1, ticks(1 / l1.lines_per_cycle)),
        translate=int(tlb.enabled),
        page_shift=tlb.page_bytes.bit_length() - 1,
        tlb1_sets=tlb.l1_entries // tlb.l1_ways,
        tlb1_ways=tlb.l1_ways,
        tlb2_sets=tlb.l2_entries // tlb.l2_ways,
        tlb2_ways=tlb.l2_ways,
        tlb2_hit=ticks(tlb.l2_hit),
        walkers=tlb.walkers,
        walk=ticks(tlb.walk_cycles),
        walk_distance=ticks(tlb.walk_distance),
        l2_sets=l2.bytes // (l2.banks * l2.ways * LINE),
        l2_ways=l2.ways,
        l2_banks=l2.banks,
        l2_shift=l2.interleave.bit_length() - 1,
        l2_hit=ticks(l2.hit),
        l2_write=ticks(l2.write),
        l2_miss=ticks(l2.miss),
        l2_mshrs=l2.mshrs,
        l2_interval=max(1, ticks(1 / l2.lines_per_cycle)),
    )


def dram_timing_of(device: Device) -> DramTiming:
    """The integer parameters of a device's memory."""
    dram = device.dram

    def after(nanoseconds: float) -> int:
        return ticks(nanoseconds * device.clock_ghz)

    busy = after(dram.burst_ns) if dram.mode == "banked" else ticks(dram.cycles_per_line)
    return DramTiming(
        banked=int(dram.mode == "banked"),
        channels=dram.channels,
        shift=dram.interleave.bit_length() - 1,
        latency=ticks(dram.latency),
        interval=max(1, round(busy / (1 - dram.refresh))),
        banks=dram.banks,
        row_shift=dram.row_bytes.bit_length() - 1,
        rcd=after(dram.t_rcd_ns),
        rp=after(dram.t_rp_ns),
        cl=after(dram.t_cl_ns),
        ras=after(dram.t_ras_ns),
        rrd=after(dram.t_rrd_ns),
        faw=after(dram.t_faw_ns),
        controller=after(dram.controller_ns),
        channel_shift=shift_of(dram.channels),
        bank_shift=shift_of(dram.banks),
    )
