"""Overheads: layout conversions, small kernels, and launch overhead between kernels."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain.launches import Launch, total_us
from lamina.explain.view import BY_NAME, FACT, MATTERS, SAVING, View
from lamina.explain.wording import layer_names, name, percent, us
from lamina.record import Finding, LayerRun

SMALL_US = 5.0
"""Duration, in microseconds, below which a kernel is mostly launch latency and tail."""
CONVERTED = 0.1
"""Smallest fraction of a phase in layout conversions that is reported."""
CONVERTIBLE = ("convolution", "pooling", "adaptive_pooling", "batch_norm", "local_response_norm")
"""Layer kinds whose kernels have a preferred layout."""
GAP = 0.05
"""Fraction of the step between kernels that is not reported: back-to-back launches leave small gaps."""
DEVICE_CLOCKS = ("cupti", "graph", "events")
"""Clocks of GPU time, without the launch overhead of the host."""
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
        f"with adjacent layers, or replay the step as a CUDA graph ({layer_names(layers)})"
    )
    evidence = {"kernels": float(count), "of": float(every), SAVING: part}
    yield view.finding("small kernels", claim, evidence, rows, FACT)


def launch_overhead(view: View) -> Iterator[Finding]:
    """The time of the whole step beyond that of its kernels, in which the GPU is idle."""
    whole, kernels = view.wall or view.network.whole, _kernels(view)
    busy = None if kernels is None else total_us(kernels)
    if busy is None and view.wall is not None and all(it.clock in DEVICE_CLOCKS for it in view.timings.values()):
        busy = view.network.measured_us
    if whole is None or whole.timing is None or not whole.timing.median_us or not busy:
        return
    gap = 1 - busy / whole.timing.median_us
    if gap < GAP or whole.timing.q1_us <= busy:
        return
    took = f"{len(kernels)} kernels" if kernels else "layers"
    each = f" ({us((whole.timing.median_us - busy) / len(kernels))} per kernel)" if kernels else ""
    untimed = any(row.outcome == "failed" for row in view.rows)
    claim = (
        f"the GPU is idle for {'at most ' if untimed else ''}{percent(gap)} of the step (launch-bound): its {took} "
        f"take {us(busy)} on the GPU, the step {us(whole.timing.median_us)} by the {whole.timing.clock} clock{each}; "
        f"torch.compile or CUDA graphs would give up to {1 / (1 - gap):.1f}x"
    )
    evidence = {"whole_us": whole.timing.median_us, "kernels_us" if kernels else "layers_us": busy, SAVING: gap}
    if kernels:
        evidence["kernels"] = float(len(kernels))
    yield view.finding("launch overhead", claim, evidence, [whole], FACT)


def _kernels(view: View) -> list[Launch] | None:
    """All kernels of the step; ``None`` if a row has a time but no kernels: then they do not add up to the step."""
    rows = [row for row in view.rows if row.key in view.launches]
    if not rows or any(time.median_us and row.key not in view.launches for row, time in view.timings.items()):
        return None
    return [one for row in rows for one in view.launches[row.key]]


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
