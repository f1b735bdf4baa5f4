"""Simulates the sparse product on a device with a compaction engine, or one of its controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from lamina.errors import UsageError, nearest
from lamina.record import SimRun
from lamina.simulate.compaction_engine.config import Engine, engine_timing
from lamina.simulate.compaction_engine.kernel import Kernel, Workload, packed_gemm, sparse_gemm
from lamina.simulate.compaction_engine.memory import EngineMemory
from lamina.simulate.compaction_engine.stream import Mask
from lamina.simulate.hierarchy import Device, Estimate, Program, gemm, sample, simulate
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.gemm import TILE
from lamina.simulate.hierarchy.program import aligned
from lamina.simulate.hierarchy.timing import TICKS
from lamina.simulate.hierarchy.unit import Impl, Progress

Control = Literal[
    "engine", "dense", "dense-small-l2", "dense-packed", "dense-prefetch-fp16", "kernel", "kernel-small-l2",
    "prefetch", "fp16", "prefetch-fp16", "compaction", "lines"
]  # fmt: skip
"""Controls that are run in place of the configured engine:

``dense``: the dense kernel on the whole L2; ``dense-small-l2``: on the L2 that remains with the engine;
``dense-packed``: with B in panels; ``dense-prefetch-fp16``: with an engine that prefetches and uses fp16, without
compaction. ``kernel``: the sparse kernel over every value, without engine; ``kernel-small-l2``: on the L2 that remains;
``prefetch``, ``fp16``, ``prefetch-fp16``: the same with an engine that does only this; ``compaction``: zeros removed,
fp32, no prefetching. ``lines``: the configured engine, but every value multiplied.
"""
SWITCHES = ("compaction", "narrow", "prefetch")
CONTROLS: tuple[Control, ...] = get_args(Control)


@dataclass(frozen=True)
class Setup:
    """Definition of a control: its kernel, L2 size and engine.

    ``does`` are the enabled parts of the engine; empty: no engine; ``None``: the engine as configured.
    """

    does: tuple[str, ...] | None = ()
    dense: bool = False
    whole_l2: bool = False

    @property
    def without(self) -> bool:
        """Whether there is no engine."""
        return self.does == ()

    @property
    def sees_zeros(self) -> bool:
        """Whether it depends on the positions of zeros."""
        return self.does is None or "compaction" in self.does

    def engine(self, engine: Engine) -> Engine | None:
        """The engine that replaces the configured one, or None."""
        if self.does is None:
            return engine
        return _switched(engine, *self.does) if self.does else None


SETUPS: Mapping[Control, Setup] = {
    "engine": Setup(None),
    "lines": Setup(None),
    "dense": Setup(dense=True, whole_l2=True),
    "dense-small-l2": Setup(dense=True),
    "dense-packed": Setup(dense=True, whole_l2=True),
    "dense-prefetch-fp16": Setup(("narrow", "prefetch"), dense=True),
    "kernel": Setup(whole_l2=True),
    "kernel-small-l2": Setup(),
    "prefetch": Setup(("prefetch",)),
    "fp16": Setup(("narrow",)),
    "prefetch-fp16": Setup(("narrow", "prefetch")),
    "compaction": Setup(("compaction",)),
}


@dataclass(frozen=True)
class SparseRun:
    """The result of a run. ``engine`` is the simulated one, or ``None``."""

    control: Control
    estimate: Estimate
    engine: Engine | None

    @property
    def cycles(self) -> int:
        return self.estimate.cycles

    @property
    def counters(self) -> dict[str, int]:
        return self.estimate.counters

    @property
    def measures(self) -> dict[str, float]:
        """Rates of the run. Latencies are in cycles; ``dram_gb_per_second`` includes reads and writes.

        ``engine_occupancy`` and ``search_occupancy`` are the fractions of time in which compaction units and search
        units are busy; ``lines_per_compacted_line`` counts lines of memory. Without an engine, its rates are absent.
        """
        c, device = self.counters, self.estimate.run.device
        seconds = self.cycles / device.clock_ghz / 1e9
        found = {
            "l2_transactions": float(c["l2_reads"] + c["l2_writes"]),
            "l2_hit_rate": _share(c["l2_hits"] + c["l2_mshr_hits"], c["l2_reads"]),
            "l1_hit_rate": _share(c["l1_hits"] + c["l1_mshr_hits"], c["l1_reads"]),
            "read_latency": _share(c["l1_latency_ticks"], TICKS * c["l1_reads"]),
            "dram_lines": float(c["dram_reads"] + c["dram_writes"]),
            "dram_gb_per_second": LINE * (c["dram_reads"] + c["dram_writes"]) / seconds / 1e9,
        }
        if self.engine is None:
            return found
        busy = TICKS * self.cycles
        answered = c["engine_reads"]
        return {
            **found,
            "engine_read_latency": _share(c["engine_latency_ticks"], TICKS * answered),
            "engine_occupancy": _share(c["engine_unit_ticks"], busy * self.engine.units),
            "search_occupancy": _share(c["engine_search_ticks"], busy * self.engine.searchers),
            "sib_hit_rate": _share(c["engine_sib_hits"], c["engine_sib_hits"] + c["engine_sib_misses"]),
            "buffer_hit_rate": _share(c["engine_buffer_hits"], answered),
            "accurate_share": _share(c["engine_accurate"], answered),
            "prudent_share": _share(c["engine_prudent"], answered),
            "hasty_share": _share(c["engine_hasty"], answered),
            "lines_per_compacted_line": _share(c["engine_lines"], answered),
        }

    def record(self, layer: str = "") -> SimRun:
        """The run as a record, with rates and counters."""
        kept = self.estimate.record(layer)
        settings = self.engine.model_dump() if self.engine else {}
        return SimRun(
            layer=kept.layer,
            kernel=kept.kernel,
            device=kept.device,
            config={**kept.config, **settings, "control": self.control},
            cycles=kept.cycles,
            counters={**kept.counters, **self.measures},
            sampled=kept.sampled,
            relative_error=kept.relative_error,
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def simulate_sparse(
    m: int,
    n: int,
    mask: Mask,
    device: Device,
    engine: Engine | None = None,
    kernel: Kernel | None = None,
    *,
    control: Control = "engine",
    impl: Impl = "core",
    sets: int | None = None,
    progress: Progress | None = None,
) -> SparseRun:
    """Simulate C[m, n] = A[m, k] B[k, n] with the zeros of B, on a device whose engine uses a fraction of L2.

    Args:
        m, n: rows of A, columns of B; rounded up to whole tiles.
        mask: non-zeros of B, [k, columns]; further columns repeat them.
        device: the device with the whole L2.
        engine: the engine; the published one by default.
        kernel: the tile of the sparse kernel.
        control: the control to run.
        impl: compiled, or plain Python with equal results.
        sets: sample this multiple of the resident workgroups; all are simulated by default.
        progress: called with the completed fraction.

    Raises:
        UsageError: invalid sizes, mask or settings, or a product that does not fit on the device.
        SpecError: an invalid engine, or a device whose L2 cannot be split as the control requires.
        UnsupportedError: a sampled run has not reached a steady state.
    """
    if control not in CONTROLS:
        raise UsageError(f"control {control!r} is unknown: {nearest(control, CONTROLS)}")
    engine, setup = engine or Engine(), SETUPS[control]
    used = setup.engine(engine)
    if setup.dense:
        work = _dense(m, n, mask, control, used)
    else:
        # Without an engine, lines of B are as in memory, the same as with an engine that has all parts disabled.
        work = sparse_gemm(m, n, mask, used or _switched(engine), kernel, skip=control != "lines")
    run_on = device if setup.whole_l2 else engine.remaining(device)
    below = None
    program = work.program if isinstance(work, Workload) else work
    if used and isinstance(work, Workload):
        below = EngineMemory(run_on, engine_timing(used, work.layout.rows), work.layout, work.region)
    if sets is None:
        run = simulate(program, run_on, impl=impl, memory=below, progress=progress)
        done = Estimate(run, run.cycles, 0.0, run.counters, program.workgroups)
    else:
        done = sample(program, run_on, sets=sets, impl=impl, memory=below, progress=progress)
    return SparseRun(control, done, used)


def _dense(m: int, n: int, mask: Mask, control: Control, used: Engine | None) -> Program | Workload:
    sizes = aligned(m, TILE), aligned(n, TILE), aligned(mask.shape[0], TILE)
    if control in ("dense", "dense-small-l2"):
        return gemm(*sizes, "corrected")
    return packed_gemm(*sizes, used or _switched(Engine()))


def _switched(engine: Engine, *on: str) -> Engine:
    """The engine with only the given parts enabled."""
    switches: dict[str, bool | int] = {name: name in on for name in SWITCHES}
    kept = switches["compaction"] and (switches["narrow"] or engine.block < LINE // 4)
    return engine.model_copy(update=switches | {"block": engine.block if kept else 1})
