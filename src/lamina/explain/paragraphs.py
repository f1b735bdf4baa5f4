"""Findings as text: a paragraph for the network, then one for each of its longest layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lamina.explain.bounds import Bound
from lamina.explain.findings import idle_gpu, ranked, views
from lamina.explain.patterns import pattern_of, patterns, repeated
from lamina.explain.rules import RULES
from lamina.explain.stalls import REASONS, shares
from lamina.explain.view import MATTERS, View, potential_saving
from lamina.explain.wording import layer_names, percent, us
from lamina.record import Counter, Finding, KernelRun, LayerRun, Roofs
from lamina.record.wording import place

LAYERS = 6
"""Layers with a paragraph of their own."""
ACTIONS = 3
"""Recommendations per paragraph."""
MIN_SAVING = 0.005
"""Smallest potential saving, as a fraction of the step, for which a recommendation is given."""

BELOW_ROOFLINE = "below roofline"
FIRST_WORDS = ("the", "bottlenecks", "nearest", "warps", "idle")
"""First words of claims that are not layer names: they are capitalized."""

MOSTLY = 0.75
"""Fraction of a phase's kernel time below which the text says for how much of it the limiter holds."""
ADVICE = {
    "layout conversions": "use channels-last to remove layout conversions",
    "tensor cores idle": "enable tensor cores",
    "below roofline": "use more efficient kernels, since these are far below the roofline",
    "imbalance": "try another algorithm in this direction, since the other one is far more efficient",
    "excess DRAM traffic": "reduce DRAM traffic (fuse kernels, or keep intermediate results in L2)",
    "launch overhead": "reduce launch overhead (CUDA graph, torch.compile)",
    "idle SMs": "launch more thread blocks, since the grids leave SMs idle",
}
"""Recommendation for each rule that estimates a potential saving."""
ADVICE_BY_LIMITER = {
    "tensor cores": "tensor cores are saturated: only fewer FLOPs, a smaller data type or sparsity help",
    "FMA units": "enable tensor cores (tf32, bf16), which have many times the throughput of FMA units",
    "instruction issue": "use fewer instructions: wider loads, simpler indexing, fusion",
    "shared memory": "reduce shared memory traffic: larger warp tiles or a smaller data type",
    "DRAM": "memory-bound: fuse with adjacent layers or use a smaller data type",
    "L2": "increase reuse in L1 and shared memory: larger tiles or a better order of thread blocks",
    "latency": "latency-bound: a larger batch, split-K, more warps or deeper prefetching",
    "launch": "launch-bound: fuse kernels or replay a CUDA graph",
}
"""Recommendation for each limiter: by the busiest unit, or by kind if no unit is busy."""


@dataclass(frozen=True)
class Paragraph:
    """A few sentences about one layer, or about the network where ``layer`` is ``None``.

    ``setting`` is the point of the grid, empty if there is only one; ``share`` the fraction of the step time.
    """

    setting: str
    layer: str | None
    text: str
    share: float


def paragraphs(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
    limit: int = LAYERS,
    layer: str | None = None,
) -> tuple[Paragraph, ...]:
    """For each setting: the network, its ``limit`` longest layers, and counters that must be read with care.

    Layers that repeat have one paragraph, about the slowest of them.

    With ``layer``, only the paragraph of that layer, however short its time.
    """
    per_setting = views(rows, roofs, kernels, counters)
    return tuple(it for view in per_setting for it in _of_setting(view, limit, layer))


def _of_setting(view: View, limit: int, only: str | None) -> list[Paragraph]:
    found = ranked([finding for rule in RULES for finding in rule(view)])
    setting = place(view.setting)
    members: dict[str, list[LayerRun]] = {}
    for row in view.rows:
        if row.timing:
            members.setdefault(row.layer, []).append(row)
    parts = {layer: sum(view.share[row] for row in of) for layer, of in members.items()}
    if not parts:
        return []

    time = "the GPU time" if any(map(idle_gpu, found)) else "the step"

    def described(layer: str, alike: Sequence[str]) -> Paragraph:
        text = _layer(view, layer, members[layer], [finding for finding in found if finding.layer == layer])
        part = sum(parts[it] for it in alike)
        if len(alike) > 1:
            text += f" {repeated(pattern_of(alike), alike)} take {percent(part)} of the step together."
        return Paragraph(setting, layer, text.replace(" of the step", f" of {time}"), part)

    if only is not None:
        return [described(only, [only])] if only in members else []
    groups = sorted(patterns(parts).values(), key=lambda of: -sum(parts[layer] for layer in of))
    shown = [of for of in groups if sum(parts[layer] for layer in of) >= MATTERS][:limit]
    made = [Paragraph(setting, None, _network(view, found, setting, members), 1.0)]
    made += [described(max(of, key=lambda layer: parts[layer]), of) for of in shown]
    rest = [layer for of in groups if of not in shown for layer in of]
    if rest and shown:
        left = sum(parts[layer] for layer in rest)
        several = len(rest) > 1
        who = f"The other {len(rest)} layers ({layer_names(rest)})" if several else f"The other layer ({rest[0]})"
        text = f"{who} {'take' if several else 'takes'} {percent(left)} of {time}{' together' if several else ''}."
        made.append(Paragraph(setting, None, text, left))
    if caveats := [finding.claim for finding in found if finding.rule.startswith("counters: ")]:
        prefix = f"{setting}: " if setting else ""
        text = " ".join(_sentence(claim.removeprefix(prefix)) for claim in caveats)
        made.append(Paragraph(setting, None, f"Notes on counters: {text}", 0.0))
    return made


def _network(view: View, found: Sequence[Finding], setting: str, members: dict[str, list[LayerRun]]) -> str:
    """The time of the step and its bottlenecks; what to do about them is in the headlines."""
    whole, prefix = view.wall or view.network.whole, f"{setting}: " if setting else ""
    count = sum(len(view.launches[row.key]) for of in members.values() for row in of)
    time = whole.timing.median_us if whole and whole.timing else view.network.measured_us
    first = f"The step takes {us(time)}" + (f" in {count} kernels." if count else ".")
    limits = [_sentence(it.claim.removeprefix(prefix)) for it in found if it.rule == "bottlenecks"]
    return prefix + " ".join([first, *limits])


def _layer(view: View, layer: str, rows: Sequence[LayerRun], found: Sequence[Finding]) -> str:
    time = sum(row.timing.median_us for row in rows if row.timing)
    sentences = [
        f"{layer} ({rows[0].kind}) takes {us(time)}, {percent(sum(view.share[row] for row in rows))} of the step."
    ]
    ordered = sorted(rows, key=lambda row: -view.share[row])
    limits = [
        f"{row.phase} ({us(row.timing.median_us)}): {_limiter(view.bounds[row])}"
        for row in ordered
        if row.timing and view.bounds[row].kind != "unknown"
    ]
    if limits:
        counted = any(view.bounds[row].source == "counters" for row in ordered)
        sentences.append(f"{'Limiter' if counted else 'Nearer roofline'} of {'; '.join(limits)}.")
    longest = view.bounds[ordered[0]]
    waits = list(shares(longest.launches).items())[:2]
    if waits:
        two = " and ".join(f"{REASONS[reason].waits_for} ({reason}, {percent(of)})" for reason, of in waits)
        sentences.append(f"Main stall reasons in {ordered[0].phase}: {two}.")
    gains = _gains(found)
    # The advice for a phase far below its roofline depends on its limiter.
    by_limiter = ADVICE_BY_LIMITER.get(longest.unit) or ADVICE_BY_LIMITER.get(longest.kind)
    advice = [
        f"{by_limiter if by_limiter and rule == BELOW_ROOFLINE else ADVICE[rule]} "
        f"({', '.join(phases)}: up to {percent(gain)} of the step)"
        for rule, (gain, phases) in list(gains.items())[:ACTIONS]
    ]
    if advice:
        sentences.append(f"Recommendations: {'; '.join(advice)}.")
    return " ".join(sentences)


def _limiter(bound: Bound) -> str:
    if bound.source == "timings":
        return str(bound)
    return str(bound) + (f" for {percent(bound.share)} of its kernel time" if bound.share < MOSTLY else "")


def _gains(found: Sequence[Finding]) -> dict[str, tuple[float, list[str]]]:
    """Total potential saving of a layer's findings, by rule and largest first, with their phases.

    The saving of a phase below its roofline is reduced by that of more specific findings about the same phase.
    """
    single = [it for it in found if it.layer and it.rule in ADVICE and potential_saving(it) > 0]
    specific: dict[tuple[str | None, str | None], float] = {}
    for it in single:
        if it.rule != BELOW_ROOFLINE:
            specific[it.layer, it.phase] = specific.get((it.layer, it.phase), 0.0) + potential_saving(it)
    gains: dict[str, tuple[float, list[str]]] = {}
    for it in single:
        more = potential_saving(it) - (specific.get((it.layer, it.phase), 0.0) if it.rule == BELOW_ROOFLINE else 0.0)
        if more >= MIN_SAVING:
            gain, phases = gains.get(it.rule, (0.0, []))
            gains[it.rule] = (gain + more, list(dict.fromkeys([*phases, it.phase or ""])))
    return dict(sorted(gains.items(), key=lambda item: -item[1][0]))


def _sentence(claim: str) -> str:
    """The claim as a sentence; a layer name at its beginning is not capitalized."""
    first, _, rest = claim.partition(" ")
    return f"{first.capitalize() if first in FIRST_WORDS else first} {rest}."
