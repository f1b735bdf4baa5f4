"""What a change should bring, from records alone: to be held against the change executed.

Every function is given the ``rows`` that the change concerns, all of one setting, and answers their time together
after it; a row of phase ``step`` among them stands for the whole network and is the time that is changed. The
``kernels`` and ``counters`` of other rows are passed over, so a whole run's may be given. A prediction is ``None``
with the reason in its rule where the records do not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from lamina.explain import metrics
from lamina.explain.algorithms import convolution_us
from lamina.explain.launches import KernelKind, Launch, Launches, mean, total, total_us
from lamina.explain.precision import in_precision
from lamina.explain.roofline import attainable_us
from lamina.explain.steps import WHOLE
from lamina.record import Counter, KernelRun, LayerRun, Roofs
from lamina.spec import ITEM_BYTES

FUSABLE = ("convolution", "linear")
"""Kinds whose kernels can take a bias and an activation into their epilogue."""
ACTIVATIONS = ("activation",)
POOLINGS = ("pooling",)
NO_HITS = 5.0
"""L1 hit rate, in percent, below which going past the cache loses nothing."""


class Prediction(NamedTuple):
    """The time predicted, in microseconds, and how it was come by."""

    us: float | None
    rule: str


def predict_fusion(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """A linear layer (or convolution), its bias and its activation as one kernel; ``rows`` of one phase.

    The matrix kernels stay, with the activation in their epilogue; the element-wise kernels vanish, and with them a
    write and a read of the intermediate tensor. Backward, the fused kernel still has to read the saved output to
    know where the activation was flat, and sums the bias gradient on its way: one pass over it at the read roof
    stays. A pooling among the rows is fused as well: its pass stays, at the copy roof.
    """
    launches = Launches(kernels, counters)
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    gone = 0.0
    for row in rows:
        if row.timing is None:
            continue
        us, rate = row.timing.median_us, row.bytes / 1e3 if row.bytes and roofs else None
        if row.kind in FUSABLE:
            gone += _us_of(row, launches, "elementwise")
            if row.phase != "forward":
                gone += _us_where(row, launches, lambda one: "at::native::reduce_kernel" in one.kernel.name)
        elif row.kind in ACTIVATIONS:
            gone += us
            if row.phase != "forward" and rate and roofs:
                # A third of backward's bytes: it reads two tensors and writes one.
                gone -= min(us, rate / 3 / roofs.read_gbs)
        elif row.kind in POOLINGS and rate and roofs:
            gone += us - min(us, rate / roofs.copy_gbs)
    rule = f"the element-wise kernels vanish, poolings run at the copy roof ({gone:.1f} of {before:.1f} us)"
    return Prediction(max(before - gone, 0.0), rule)


def predict_without_activations(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """The upper bound of fusion: the activations are removed and nothing takes their place.

    With the whole step among the rows, their part of the time between kernels vanishes too. Source: ICPE'18,
    potential optimizations.
    """
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    parts = [row for row in rows if row.phase != WHOLE]
    gone = sum(row.timing.median_us for row in parts if row.timing and row.kind in ACTIVATIONS)
    between = max(before - sum(row.timing.median_us for row in parts if row.timing), 0.0)
    launches = Launches(kernels, counters)
    count = sum(len(launches[row.key]) for row in parts)
    theirs = sum(len(launches[row.key]) for row in parts if row.kind in ACTIVATIONS)
    between = between * theirs / count if count else 0.0
    rule = f"the activations vanish ({gone:.1f} us), and their {theirs} of {count} launches ({between:.1f} us)"
    return Prediction(max(before - gone - between, 0.0), rule)


def predict_l1_bypass(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """Loads that go past L1 to L2 (``.cg``).

    Every sector that hit in L1 becomes one more for L2. Nothing changes where nothing hit; where something did,
    the time stays as long as L2 can serve the sum, and grows with its load beyond that. A gain is never predicted:
    what bypassing may save (allocating lines that nobody reads again) no counter shows.
    """
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    launches = [launch for row in rows for launch in Launches(kernels, counters)[row.key]]
    hit, load = mean(launches, metrics.L1_HIT), mean(launches, metrics.L2)
    if hit is None or load is None:
        return Prediction(None, "needs the L1 hit rate and the load of L2: profile with counters")
    if hit < NO_HITS:
        return Prediction(before, f"L1 serves {hit:.0f} % of the sectors: bypassing it changes nothing")
    reads, writes = total(launches, metrics.L2_READS), total(launches, metrics.L2_WRITES)
    part = reads / (reads + writes) if reads and writes is not None else 1.0
    after = load * (1 - part + part / (1 - min(hit, 99.0) / 100))
    rule = f"L1 serves {hit:.0f} % of the sectors: without it L2 is loaded to {after:.0f} instead of {load:.0f} %"
    return Prediction(before * max(1.0, after / 100), rule)


def predict_channels_last(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """Tensors that already lie as the kernels want them: layout conversions vanish, all else stays."""
    before = _before(rows)
    launches = Launches(kernels, counters)
    if before is None or not any(launches[row.key] for row in rows):
        return Prediction(None, _UNTIMED if before is None else _NO_KERNELS)
    found = [one for row in rows for one in launches[row.key] if one.kind == "layout"]
    gone = sum(_us_of(row, launches, "layout") for row in rows)
    return Prediction(max(before - gone, 0.0), f"{len(found)} layout conversions vanish ({gone:.1f} us)")


def predict_precision(
    rows: Sequence[LayerRun],
    kernels: Sequence[KernelRun],
    counters: Sequence[Counter],
    roofs: Roofs | None,
    precision: str,
) -> Prediction:
    """The same work in another precision.

    Matrix kernels shrink as their operations and bytes at the roofs do, or grow as far as a slower roof makes them.
    Both times are added, not the longer one taken: blocks that load, multiply and end together overlap little where
    a grid has few waves. All other kernels shrink with the element, but not where counters say that instructions or
    latency hold them. No kernel gets shorter than a launch, unless it already is.
    """
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    if roofs is None:
        return Prediction(None, "needs the machine's roofs")
    if {row.precision for row in rows} - ITEM_BYTES.keys() or precision not in ITEM_BYTES:
        return Prediction(None, f"the size of an element in {precision} is unknown")
    launches = Launches(kernels, counters)
    gone = 0.0
    for row in rows:
        if row.phase == WHOLE or row.timing is None:
            continue
        after = in_precision(row, launches[row.key], roofs, precision)
        if after is None:
            return Prediction(None, f"{row.layer}: its operations, its bytes or the roof of {precision} is unknown")
        gone += row.timing.median_us - after
    # What no row of a layer accounts for, the time between kernels, stays as it is.
    return Prediction(
        max(before - gone, 0.0), "matrix kernels follow their operations and bytes at the roofs, the others their bytes"
    )


def predict_cuda_graph(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """The whole step replayed as one CUDA graph: the device no longer waits for the host, only for its kernels."""
    before = _before(rows)
    launches = [launch for row in rows for launch in Launches(kernels, counters)[row.key]]
    if before is None or not launches:
        return Prediction(None, _UNTIMED if before is None else _NO_KERNELS)
    busy = total_us(launches)
    return Prediction(min(before, busy), f"{len(launches)} kernels, one after the other, take {busy:.1f} us")


def predict_algorithm(
    rows: Sequence[LayerRun],
    kernels: Sequence[KernelRun],
    counters: Sequence[Counter],
    roofs: Roofs | None,
    algorithm: str = "",
    peers: Sequence[LayerRun] = (),
) -> Prediction:
    """Another algorithm for a convolution (``gemm``, ``direct``, ``winograd``, ``fft``; none: the library's best).

    The library's best reaches the median part of the roof that the ``peers`` reach, layers of the same kind and
    phase, and is no slower than now. The other algorithms' stages move their bytes at the copy roof and do their
    product at that part of the compute roof (without peers, at the part that the rows reach now).
    """
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    if roofs is None:
        return Prediction(None, "needs the machine's roofs")
    least = [attainable_us(row, roofs) for row in rows if row.timing]
    reached = [
        best / row.timing.median_us
        for row in peers or rows
        if row.timing and row.timing.median_us and (best := attainable_us(row, roofs))
    ]
    if not reached or None in least:
        return Prediction(None, "needs operations, bytes and the roof of the precision")
    usual = min(median(reached), 1.0)
    if algorithm in ("", "direct"):
        rule = f"the library's kernel reaches {usual:.0%} of the roof, as layers of its kind do here"
        return Prediction(min(before, sum(one or 0.0 for one in least) / usual), rule)
    stages = [convolution_us(row, roofs, algorithm, usual) for row in rows if row.timing]
    if None in stages:
        return Prediction(None, f"{algorithm} is not made for this shape, or its roof is unknown")
    rule = f"the stages of {algorithm} at the copy roof, its product at {usual:.0%} of the compute roof"
    return Prediction(sum(one or 0.0 for one in stages), rule)


_UNTIMED = "a row has no time"
_NO_KERNELS = "needs the kernels of the rows: profile them"


def _before(rows: Sequence[LayerRun]) -> float | None:
    """What is changed: the whole step where it was timed, else all rows together but those that never run."""
    whole = [row for row in rows if row.phase == WHOLE]
    timings = [row.timing for row in whole or rows if row.outcome != "skipped"]
    known = [timing.median_us for timing in timings if timing]
    return sum(known) if known and len(known) == len(timings) else None


def _us_of(row: LayerRun, launches: Launches, kind: KernelKind) -> float:
    """The part of a row's time that its kernels of one kind take."""
    return _us_where(row, launches, lambda one: one.kind == kind)


def _us_where(row: LayerRun, launches: Launches, chosen: Callable[[Launch], bool]) -> float:
    mine = launches[row.key]
    all_us = total_us(mine)
    if row.timing is None or not all_us:
        return 0.0
    return row.timing.median_us * total_us(filter(chosen, mine)) / all_us
