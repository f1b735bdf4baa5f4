"""Overheads: layout conversions, small kernels, and launch overhead between kernels."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain.launches import Launch, total_us
from lamina.explain.view import BY_NAME, FACT, MATTERS, SAVING, View
from lamina.explain.wording import name, percent, us
from lamina.record import Finding, LayerRun
from lamina.record.wording import listed

SMALL_US = 5.0
"""Duration, in microseconds, below which a kernel is mostly launch latency and tail."""
CONVERTED = 0.1
"""Smallest fraction of a phase in layout conversions that is reported."""
CONVERTIBLE = ("convolution", "pooling", "adaptive_pooling", "batch_norm", "local_response_norm")
"""Layer kinds whose kernels have a preferred layout."""
GAP = 0.05
"""Fraction of the step between kernels that is not reported: back-to-back launches leave small gaps."""
MIN_RATIO = 1.25
"""Ratio of a phase's time to its kernel time from which it is reported as CPU-bound."""


def layout_conversions(view: View) -> Iterator[Finding]:
    """Kernels that only convert between NCHW and NHWC: one finding for the step, then one per phase."""
    found: dict[LayerRun, list[Launch]] = {}
    for row in view.rows:
        if row.kind in CONVERTIBLE:
            kinds = ("layout", "copy") if any(one.kind == "layout" for one in view.launches[row.key]) else ("layout",)
            mine = [one for one in view.launches[row.key] if one.kind in kinds]
            if mine:
                found[row] = mine
    parts = {row: view.fraction(row, mine) for row, mine in found.items()}
    total = sum(parts.values())
    if total < MATTERS:
        return
    count, time = sum(map(len, found.values())), sum(map(total_us, found.values()))
    claim = (
        f"{count} layout conversions around {len(found)} phases take {us(time)}, {percent(total)} of the step: "
        "run the network in channels-last, the layout that the kernels use"
    )
    evidence = {"kernels": float(count), "us": time, SAVING: total}
    yield view.finding("layout conversions", claim, evidence, list(found), BY_NAME)
    for row, part in sorted(parts.items(), key=lambda item: -item[1]):
        of_row = part / view.share[row] if view.share.get(row) else 0.0
        if part >= MATTERS / 2 and of_row >= CONVERTED:
            taken = us(total_us(found[row]))
            claim = f"{name(row)} spends {percent(of_row)} on layout conversions ({taken}): use channels-last"
            evidence = {"share of phase": of_row, "kernels": float(len(found[row])), SAVING: part}
            yield view.finding("layout conversions", claim, evidence, [row], BY_NAME, row)


def small_kernels(view: View) -> Iterator[Finding]:
    """Kernels too short for a launch of their own."""
    small = {row: [one for one in view.launches[row.key] if one.us < SMALL_US] for row in view.rows}
    rows = sorted((row for row in view.rows if small[row]), key=lambda row: -view.fraction(row, small[row]))
    part = sum(view.fraction(row, small[row]) for row in rows)
    if part < MATTERS:
        return
    count, every = sum(len(small[row]) for row in rows), sum(len(view.launches[row.key]) for row in view.rows)
    layers = list(dict.fromkeys(row.layer for row in rows))
    claim = (
        f"{count} of {every} kernels are shorter than {us(SMALL_US)} and take {percent(part)} of the step: fuse them "
        f"with adjacent layers, or replay the step as a CUDA graph ({listed(layers)})"
    )
    evidence = {"kernels": float(count), "of": float(every), SAVING: part}
    yield view.finding("small kernels", claim, evidence, rows, FACT)


def launch_overhead(view: View) -> Iterator[Finding]:
    """The time of the whole step beyond its kernels: launch and framework overhead."""
    whole, rows = view.network.whole, [row for row in view.rows if row.key in view.launches]
    if (
        whole is None
        or whole.timing is None
        or not whole.timing.median_us
        or not rows
        or any(_without_kernels(view, row) for row in view.rows)
    ):
        return
    busy = sum(total_us(view.launches[row.key]) for row in rows)
    count = sum(len(view.launches[row.key]) for row in rows)
    gap = 1 - busy / whole.timing.median_us
    if gap < GAP or whole.timing.q1_us <= busy:
        return
    each = us((whole.timing.median_us - busy) / count)
    claim = (
        f"the whole step takes {us(whole.timing.median_us)}, its {count} kernels {us(busy)}: {percent(gap)} of it "
        f"({each} per kernel) is launch and framework overhead; a CUDA graph, torch.compile or a larger batch "
        "removes most of it"
    )
    evidence = {"whole_us": whole.timing.median_us, "kernels_us": busy, "kernels": float(count), SAVING: gap}
    yield view.finding("launch overhead", claim, evidence, [whole], FACT)


def _without_kernels(view: View, row: LayerRun) -> bool:
    """Whether a row has a time but no kernels: then the kernels do not add up to the step."""
    return row.timing is not None and row.key not in view.launches


def phase_launch_overhead(view: View) -> Iterator[Finding]:
    """Phases whose time, by a clock that includes gaps, is longer than their kernels."""
    for row in filter(view.matters, view.rows):
        busy = total_us(view.launches[row.key])
        if not busy or row.timing is None or row.timing.clock == "cupti" or row.timing.q1_us <= MIN_RATIO * busy:
            continue
        gap = 1 - busy / row.timing.median_us
        count = len(view.launches[row.key])
        took = f"{name(row)} takes {us(row.timing.median_us)}, its {count} kernels {us(busy)}"
        claim = f"{took}: it is CPU-bound (the GPU waits for launches)"
        evidence = {"row_us": row.timing.median_us, "kernels_us": busy, SAVING: view.share[row] * gap}
        yield view.finding("launch overhead", claim, evidence, [row], FACT, row)
