"""Lower and upper bounds of a run's time, for any order of its events."""

from __future__ import annotations

from lamina.simulate.hierarchy.program import LDS, LOAD, STORE, VALU, Phase
from lamina.simulate.hierarchy.timing import TICKS, dram_timing_of, timing_of
from lamina.simulate.hierarchy.unit import Simulation


def bounds(run: Simulation) -> tuple[float, float]:
    """Lower and upper bound of the cycles, with the launch.

    The lower bound is the largest of: vector and LDS instructions over their units, lines over the L1 ports, DRAM lines
    over the channels, and one workgroup whose lines all hit. The upper bound is fully serial execution, each line with
    a page walk, a full wait for a way in both caches, and a row conflict.
    """
    t, d, counters = timing_of(run.device), dram_timing_of(run.device), run.counters
    program, launch = run.program, round(run.device.launch_cycles)
    lines = counters["l1_reads"] + counters["l1_writes"]
    trips = program.trips[: len(run.finished)]
    alone = _alone(program.before, run) + int(trips.max()) * _alone(program.loop, run) + _alone(program.after, run)
    least = max(
        counters["valu_ticks"] / (t.cus * t.simds),
        counters["lds_ticks"] / t.cus,
        lines * t.l1_interval / t.cus,
        (counters["dram_reads"] - len(program.image)) * d.interval / d.channels,
        alone,
    )
    groups = len(run.finished)
    instructions = groups * (_alone(program.before, run) + _alone(program.after, run)) + int(trips.sum()) * _alone(
        program.loop, run
    )
    access = d.latency + d.ras + d.rp + d.rcd + d.cl + d.faw + d.rrd + 2 * d.interval + d.controller
    line = (
        t.tlb2_hit + t.walk + t.walk_distance + t.l1_fill + t.l1_hit + t.l1_write + t.l1_to_l2 + t.vmem_path
        + t.l2_hit + t.l2_write + t.l2_miss + t.l1_interval + t.l2_interval + 3 * access
    )  # fmt: skip
    most = instructions + (lines + len(program.image)) * line + groups * t.dispatch
    return least / TICKS + launch, most / TICKS + launch + 1


def _alone(phases: tuple[Phase, ...], run: Simulation) -> int:
    """Ticks of a wavefront alone on the machine, without the wait for its lines."""
    t = timing_of(run.device)
    cost = {VALU: t.valu, LDS: t.lds}
    return sum(
        phase.count * cost.get(phase.kind, 0)
        + phase.scalar * t.scalar
        + (t.vmem_issue if phase.kind in (LOAD, STORE) else 0)
        for phase in phases
    )
