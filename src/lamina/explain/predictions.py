"""Predicted time after a change, from records alone, to be compared with the executed change.

Every function takes the ``rows`` that the change affects, all of one setting, and returns their total time after it. If
a row of phase ``step`` is among them, it stands for the whole network and its time is the one that changes. The
``kernels`` and ``counters`` may be those of the whole run: those of other rows are ignored. If the records are not
sufficient, the prediction is ``None`` and its rule gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from lamina.explain import metrics
from lamina.explain.algorithms import convolution_us
from lamina.explain.launches import KernelKind, Launch, Launches, mean, total, total_us
from lamina.explain.precision import in_precision
from lamina.explain.roofline import attainable_us, least_us
from lamina.explain.steps import WHOLE
from lamina.record import Counter, KernelRun, LayerRun, Roofs
from lamina.spec import ITEM_BYTES

FUSABLE = ("convolution", "linear")
"""Layer kinds whose kernels can apply a bias and an activation in their epilogue."""
ACTIVATIONS = ("activation",)
POOLINGS = ("pooling",)
NO_HITS = 5.0
"""L1 hit rate, in percent, below which bypassing the cache loses nothing."""


class Prediction(NamedTuple):
    """The predicted time in microseconds, and the rule that gave it."""

    us: float | None
    rule: str


def predict_fusion(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """A linear layer (or convolution), its bias and its activation as one kernel; ``rows`` of one phase.

    The matrix kernels stay, with the activation in their epilogue. The element-wise kernels are removed, and with them
    a write and a read of the intermediate tensor. In backward, the fused kernel still reads the saved output for the
    activation's derivative and sums the bias gradient in the same pass: one pass at the read bandwidth stays. A
    pooling layer among the rows is fused as well: its pass stays, at the copy bandwidth.
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
    rule = f"element-wise kernels removed, pooling at the copy bandwidth ({gone:.1f} of {before:.1f} us)"
    return Prediction(max(before - gone, 0.0), rule)


def predict_without_activations(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """The upper bound of fusion: the activations are removed and not replaced.

    If the whole step is among the rows, their part of the time between kernels is removed too. Source: ICPE'18,
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
    of_activations = sum(len(launches[row.key]) for row in parts if row.kind in ACTIVATIONS)
    between = between * of_activations / count if count else 0.0
    rule = f"activations removed ({gone:.1f} us), with {of_activations} of {count} launches ({between:.1f} us)"
    return Prediction(max(before - gone - between, 0.0), rule)


def predict_l1_bypass(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """Loads that bypass L1 (cache operator ``.cg``).

    Every sector that hit in L1 becomes one more access to L2. Without L1 hits nothing changes. With hits, the time
    stays the same while L2 can serve the sum, and grows with the L2 load beyond that. A gain is never predicted: no
    counter shows what bypassing saves (the allocation of lines that are never read again).
    """
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    launches = [launch for row in rows for launch in Launches(kernels, counters)[row.key]]
    hit, load = mean(launches, metrics.L1_HIT), mean(launches, metrics.L2)
    if hit is None or load is None:
        return Prediction(None, _without(rows, "hardware counters", _NO_COUNTERS))
    if hit < NO_HITS:
        return Prediction(before, f"L1 hit rate {hit:.0f} %: bypassing L1 changes nothing")
    reads, writes = total(launches, metrics.L2_READS), total(launches, metrics.L2_WRITES)
    part = reads / (reads + writes) if reads and writes is not None else 1.0
    after = load * (1 - part + part / (1 - min(hit, 99.0) / 100))
    rule = f"L1 hit rate {hit:.0f} %: without L1, the L2 load rises from {load:.0f} to {after:.0f} %"
    return Prediction(before * max(1.0, after / 100), rule)


def predict_channels_last(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """Tensors in the layout that the kernels use: layout conversions are removed, all else stays."""
    before = _before(rows)
    launches = Launches(kernels, counters)
    if before is None or not any(launches[row.key] for row in rows):
        return Prediction(None, _UNTIMED if before is None else _without(rows, "kernels", _NO_KERNELS))
    found = [one for row in rows for one in launches[row.key] if one.kind == "layout"]
    gone = sum(_us_of(row, launches, "layout") for row in rows)
    return Prediction(max(before - gone, 0.0), f"{len(found)} layout conversions removed ({gone:.1f} us)")


def predict_precision(
    rows: Sequence[LayerRun],
    kernels: Sequence[KernelRun],
    counters: Sequence[Counter],
    roofs: Roofs | None,
    precision: str,
) -> Prediction:
    """The same work in another precision.

    Matrix kernels scale with their compute time plus memory time at the measured peaks, and grow at most to a lower
    roofline. The two times are summed, not maximized: thread blocks that load, multiply and end together overlap
    little if the grid has few waves. All other kernels scale with the element size, unless counters show that they are
    limited by instructions or latency. No kernel becomes shorter than a launch, unless it already is.
    """
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    if roofs is None:
        return Prediction(None, "needs the measured peaks of the machine")
    if {row.precision for row in rows} - ITEM_BYTES.keys() or precision not in ITEM_BYTES:
        return Prediction(None, f"the size of an element in {precision} is unknown")
    launches = Launches(kernels, counters)
    gone = 0.0
    for row in rows:
        if row.phase == WHOLE or row.timing is None:
            continue
        after = in_precision(row, launches[row.key], roofs, precision)
        if after is None:
            return Prediction(None, f"{row.layer}: its FLOPs, its bytes or the peak of {precision} is unknown")
        gone += row.timing.median_us - after
    # The time between kernels is in no layer's row and stays as it is.
    return Prediction(
        max(before - gone, 0.0), "matrix kernels scale with FLOPs and bytes at the measured peaks, others with bytes"
    )


def predict_cuda_graph(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """The whole step replayed as one CUDA graph: its time is the sum of its kernel times, without launch overhead."""
    before = _before(rows)
    launches = [launch for row in rows for launch in Launches(kernels, counters)[row.key]]
    if before is None or not launches:
        return Prediction(None, _UNTIMED if before is None else _without(rows, "kernels", _NO_KERNELS))
    busy = total_us(launches)
    return Prediction(min(before, busy), f"the {len(launches)} kernels take {busy:.1f} us in sequence")


def predict_algorithm(
    rows: Sequence[LayerRun],
    kernels: Sequence[KernelRun],
    counters: Sequence[Counter],
    roofs: Roofs | None,
    algorithm: str = "",
    peers: Sequence[LayerRun] = (),
) -> Prediction:
    """Another algorithm for a convolution (``gemm``, ``direct``, ``winograd``, ``fft``; empty: the library's best).

    The library's best reaches the median fraction of the roofline that the ``peers`` reach (layers of the same kind
    and phase), and is no slower than now. The stages of the other algorithms move their bytes at the copy bandwidth and
    run their matrix product at that fraction of the peak GEMM rate. Without peers, the fraction is that of the rows.
    """
    before = _before(rows)
    if before is None:
        return Prediction(None, _UNTIMED)
    if roofs is None:
        return Prediction(None, "needs the measured peaks of the machine")
    least = [attainable_us(row, roofs) for row in rows if row.timing]
    reached = [
        best / row.timing.median_us
        for row in peers or rows
        if row.timing and row.timing.median_us and (best := attainable_us(row, roofs))
    ]
    if not reached or None in least:
        return Prediction(None, "needs FLOPs, bytes and the measured peak of the precision")
    usual = min(median(reached), 1.0)
    if algorithm in ("", "direct"):
        rule = f"the library's kernel reaches {usual:.0%} of the roofline, like other layers of its kind"
        return Prediction(min(before, sum(one or 0.0 for one in least) / usual), rule)
    stages = [convolution_us(row, roofs, algorithm, usual) for row in rows if row.timing]
    if None in stages:
        return Prediction(None, f"{algorithm} does not support this shape, or its peak is unknown")
    rule = f"stages of {algorithm} at the copy bandwidth, matrix product at {usual:.0%} of the peak GEMM rate"
    return Prediction(sum(one or 0.0 for one in stages), rule)


def predict_bound(flops: int, moved: int, roofs: Roofs | None, precision: str) -> Prediction:
    """The roofline time of ``flops`` and ``moved`` bytes: no implementation that needs them all is faster."""
    if roofs is None:
        return Prediction(None, "needs the measured peaks of the machine")
    us = least_us(flops, moved, roofs, precision)
    if us is None:
        return Prediction(None, f"the peak of {precision} is unknown")
    return Prediction(us, f"roofline of {flops / 1e6:.3g} MFLOP and {moved / 1e6:.3g} MB {us:.3g} us")


_UNTIMED = "a row has no time"
_NO_KERNELS = "needs the kernels of the rows: profile them"
_NO_COUNTERS = "needs the L1 hit rate and the L2 throughput: profile with counters"


def _without(rows: Sequence[LayerRun], needed: str, advice: str) -> str:
    """Why there is no prediction: ``advice``, which does not help on a CPU."""
    clocks = {row.timing.clock for row in rows if row.timing}
    return f"needs the {needed} of a GPU: rows of a CPU have none" if clocks == {"cpu"} else advice


def _before(rows: Sequence[LayerRun]) -> float | None:
    """The time before the change: that of the whole step if it was timed, else of all rows that were not skipped."""
    whole = [row for row in rows if row.phase == WHOLE]
    timings = [row.timing for row in whole or rows if row.outcome != "skipped"]
    known = [timing.median_us for timing in timings if timing]
    return sum(known) if known and len(known) == len(timings) else None


def _us_of(row: LayerRun, launches: Launches, kind: KernelKind) -> float:
    """Time of a row in its kernels of one kind, in microseconds."""
    return _us_where(row, launches, lambda one: one.kind == kind)


def _us_where(row: LayerRun, launches: Launches, chosen: Callable[[Launch], bool]) -> float:
    mine = launches[row.key]
    all_us = total_us(mine)
    if row.timing is None or not all_us:
        return 0.0
    return row.timing.median_us * total_us(filter(chosen, mine)) / all_us
