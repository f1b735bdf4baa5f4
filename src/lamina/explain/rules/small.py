"""Time that no layer's arithmetic needs: layout conversions, tiny kernels, and the host between kernels."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain.launches import Launch, total_us
from lamina.explain.view import BY_NAME, FACT, MATTERS, STAKE, View
from lamina.explain.wording import name, percent, us
from lamina.record import Finding, LayerRun
from lamina.record.wording import listed

TINY_US = 5.0
"""A kernel that is shorter is mostly starting and ending."""
CONVERTED = 0.1
"""Part of a phase that conversions may take before it is named."""
CONVERTIBLE = ("convolution", "pooling", "adaptive_pooling", "batch_norm", "local_response_norm")
"""Kinds whose kernels have a preferred layout."""
GAP = 0.05
"""Part of the whole step that may lie between kernels: each launch leaves a little."""
APART = 1.25
"""How much longer than its kernels a phase must take by its own clock before the host is named."""


def layout_conversions(view: View) -> Iterator[Finding]:
    """Kernels that only turn NCHW into NHWC and back: all of the step in one sentence, then each phase's."""
    found: dict[LayerRun, list[Launch]] = {}
    for row in view.rows:
        if row.kind in CONVERTIBLE:
            kinds = ("layout", "copy") if any(one.kind == "layout" for one in view.launches[row.key]) else ("layout",)
            mine = [one for one in view.launches[row.key] if one.kind in kinds]
            if mine:
                found[row] = mine
    parts = {row: view.part(row, mine) for row, mine in found.items()}
    everything = sum(parts.values())
    if everything < MATTERS:
        return
    count, time = sum(map(len, found.values())), sum(map(total_us, found.values()))
    claim = (
        f"{count} layout conversions around {len(found)} phases take {us(time)}, {percent(everything)} of the step: "
        "run the network channels-last, so that tensors already lie as the kernels want them"
    )
    evidence = {"kernels": float(count), "us": time, STAKE: everything}
    yield view.finding("layout conversions", claim, evidence, list(found), BY_NAME)
    for row, part in sorted(parts.items(), key=lambda item: -item[1]):
        of_row = part / view.share[row] if view.share.get(row) else 0.0
        if part >= MATTERS / 2 and of_row >= CONVERTED:
            claim = f"{percent(of_row)} of {name(row)} converts layouts ({us(total_us(found[row]))}): use channels-last"
            evidence = {"share of phase": of_row, "kernels": float(len(found[row])), STAKE: part}
            yield view.finding("layout conversions", claim, evidence, [row], BY_NAME, row)


def small_kernels(view: View) -> Iterator[Finding]:
    """Kernels too short to be worth a launch each."""
    tiny = {row: [one for one in view.launches[row.key] if one.us < TINY_US] for row in view.rows}
    rows = sorted((row for row in view.rows if tiny[row]), key=lambda row: -view.part(row, tiny[row]))
    part = sum(view.part(row, tiny[row]) for row in rows)
    if part < MATTERS:
        return
    count, every = sum(len(tiny[row]) for row in rows), sum(len(view.launches[row.key]) for row in view.rows)
    layers = list(dict.fromkeys(row.layer for row in rows))
    claim = (
        f"{count} of {every} kernels are shorter than {us(TINY_US)} and take {percent(part)} of the step: fuse them "
        f"with their neighbours, or replay the step as a CUDA graph ({listed(layers)})"
    )
    evidence = {"kernels": float(count), "of": float(every), STAKE: part}
    yield view.finding("small kernels", claim, evidence, rows, FACT)


def between_kernels(view: View) -> Iterator[Finding]:
    """The step timed at once against its kernels: what is left is launching and the framework."""
    whole, rows = view.network.whole, [row for row in view.rows if row.key in view.launches]
    if (
        whole is None
        or whole.timing is None
        or not whole.timing.median_us
        or not rows
        or any(_untold(view, row) for row in view.rows)
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
        f"({each} for each kernel) is launching and framework; a CUDA graph, torch.compile or a larger batch would "
        "save most of it"
    )
    evidence = {"whole_us": whole.timing.median_us, "kernels_us": busy, "kernels": float(count), STAKE: gap}
    yield view.finding("between kernels", claim, evidence, [whole], FACT)


def _untold(view: View, row: LayerRun) -> bool:
    """Whether a row's device time is in no kernel: then the kernels do not make up the step."""
    return row.timing is not None and row.key not in view.launches


def slower_than_its_kernels(view: View) -> Iterator[Finding]:
    """Phases that take longer by a clock that sees the gaps than their kernels do."""
    for row in filter(view.matters, view.rows):
        busy = total_us(view.launches[row.key])
        if not busy or row.timing is None or row.timing.clock == "cupti" or row.timing.q1_us <= APART * busy:
            continue
        gap = 1 - busy / row.timing.median_us
        count = len(view.launches[row.key])
        took = f"{name(row)} takes {us(row.timing.median_us)}, its {count} kernels {us(busy)}"
        claim = f"{took}: the device waits for the host"
        evidence = {"row_us": row.timing.median_us, "kernels_us": busy, STAKE: view.share[row] * gap}
        yield view.finding("between kernels", claim, evidence, [row], FACT, row)
