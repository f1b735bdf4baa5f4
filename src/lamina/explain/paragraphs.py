"""Findings as a few paragraphs: the network first, then the layers that take most of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lamina.explain.bounds import Bound
from lamina.explain.findings import ranked, views
from lamina.explain.rules import RULES
from lamina.explain.stalls import REASONS, shares
from lamina.explain.view import MATTERS, View, stake
from lamina.explain.wording import percent, us
from lamina.record import Counter, Finding, KernelRun, LayerRun, Roofs
from lamina.record.wording import listed, place

LAYERS = 6
"""Layers that get a paragraph of their own."""
ACTIONS = 3
"""Pieces of advice in one paragraph."""
WORTH = 0.005
"""Part of the step that advice must be able to save to be given."""

ROOF = "far below the roof"
BEGINNINGS = ("the", "what", "warps", "multiprocessors")
"""Words that begin a claim and are no layer's name."""

MOSTLY = 0.75
"""Part of a phase below which its limit is said to hold for a part only."""
ADVICE = {
    "layout conversions": "use channels-last: its layout conversions vanish",
    "tensor cores idle": "let the tensor cores work",
    "far below the roof": "close the distance to the roof",
    "imbalance": "look for another algorithm in one direction, since the other is far more efficient",
    "traffic": "fuse, or keep intermediate results in the cache, since it moves too much through DRAM",
    "between kernels": "take the host out of the way (CUDA graph, torch.compile)",
    "device not filled": "give it more blocks, since its grids leave multiprocessors empty",
}
"""What to do about each rule that knows what could be saved."""
AGAINST = {
    "tensor cores": "only fewer operations, a smaller element or sparsity help tensor cores that are saturated",
    "multiply-add units": "the tensor cores (tf32, bf16) have many times the rate of multiply-add units",
    "instruction issue": "fewer instructions for the same work help: wider loads, simpler indexing, fusion",
    "shared memory pipe": "larger tiles for each warp, or smaller elements, take load off shared memory",
    "DRAM": "only moving less helps: fuse with the neighbours, or use smaller elements",
    "L2": "more reuse above L2 helps: larger tiles, or a better order of blocks",
    "latency": "more work in flight helps: a larger batch, splitting the sum, more warps or deeper prefetching",
    "launch": "fewer kernels help: fuse them, or replay a CUDA graph",
}
"""What helps against each limit: by the busiest unit, or by kind where no unit is busy."""


@dataclass(frozen=True)
class Paragraph:
    """A few sentences about one layer, or about the network where ``layer`` is ``None``.

    ``setting`` is the point of the grid it speaks of, empty where there is one only; ``share`` the part of the step.
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
    """For each setting the network, its ``limit`` longest layers, and how to read the counters where they mislead.

    With ``layer`` only that one, however short it is.
    """
    looked_at = views(rows, roofs, kernels, counters)
    return tuple(it for view in looked_at for it in _of_setting(view, limit, layer))


def _of_setting(view: View, limit: int, only: str | None) -> list[Paragraph]:
    found = ranked([finding for rule in RULES for finding in rule(view)])
    setting = place(view.setting)
    members: dict[str, list[LayerRun]] = {}
    for row in view.rows:
        if row.timing:
            members.setdefault(row.layer, []).append(row)
    parts = {layer: sum(view.share[row] for row in of) for layer, of in members.items()}
    longest = sorted((layer for layer in parts if parts[layer] >= MATTERS), key=lambda layer: -parts[layer])[:limit]
    if not parts:
        return []
    made = [Paragraph(setting, None, _network(view, found, setting, members), 1.0)]
    for layer in longest if only is None else [only] if only in members else []:
        mine = [finding for finding in found if finding.layer == layer]
        made.append(Paragraph(setting, layer, _layer(view, layer, members[layer], mine), parts[layer]))
    if only is not None:
        return made[1:]
    rest = [layer for layer in parts if layer not in longest]
    if rest and longest:
        left = sum(parts[layer] for layer in rest)
        several = len(rest) > 1
        who = f"The other {len(rest)} layers ({listed(rest)}) take" if several else f"The other layer ({rest[0]}) takes"
        text = f"{who} {percent(left)} of the step{' together' if several else ''}."
        made.append(Paragraph(setting, None, text, left))
    if traps := [finding.claim for finding in found if finding.rule.startswith("trap")]:
        prefix = f"{setting}: " if setting else ""
        said = " ".join(_sentence(claim.removeprefix(prefix)) for claim in traps)
        made.append(Paragraph(setting, None, f"Reading the counters: {said}", 0.0))
    return made


def _network(view: View, found: Sequence[Finding], setting: str, members: dict[str, list[LayerRun]]) -> str:
    whole, prefix = view.network.whole, f"{setting}: " if setting else ""
    count = sum(len(view.launches[row.key]) for of in members.values() for row in of)
    time = whole.timing.median_us if whole and whole.timing else view.network.measured_us
    begin = f"The step takes {us(time)}" + (f" in {count} kernels." if count else ".")
    facts = [finding for finding in found if finding.rule in ("dominant layers", "limits of the step", "failed")]
    said = [begin, *(_sentence(finding.claim.removeprefix(prefix)) for finding in facts)]
    about = {finding.rule: finding for finding in reversed(found) if finding.layer is None and stake(finding) >= WORTH}
    advice = {rule: (stake(finding), finding.claim.removeprefix(prefix)) for rule, finding in about.items()}
    for rule, (gain, layers) in _gains(found, lambda finding: finding.layer or "").items():
        if rule not in advice:
            advice[rule] = (gain, f"{ADVICE[rule]} in {listed(layers)}: up to {percent(gain)} of the step")
    best = sorted(advice.values(), reverse=True)[:ACTIONS]
    if best:
        said.append("Most to gain: " + " ".join(f"({i}) {text}." for i, (_, text) in enumerate(best, 1)))
    return prefix + " ".join(said)


def _layer(view: View, layer: str, rows: Sequence[LayerRun], found: Sequence[Finding]) -> str:
    time = sum(row.timing.median_us for row in rows if row.timing)
    said = [f"{layer} ({rows[0].kind}) takes {us(time)}, {percent(sum(view.share[row] for row in rows))} of the step."]
    ordered = sorted(rows, key=lambda row: -view.share[row])
    limits = [
        f"{row.phase} ({us(row.timing.median_us)}) {_limited(view.bounds[row])}"
        for row in ordered
        if row.timing and view.bounds[row].kind != "unknown"
    ]
    if limits:
        counted = any(view.bounds[row].source == "counters" for row in ordered)
        said.append(f"{'It is limited' if counted else 'Its nearest roof is'} in {', '.join(limits)}.")
    first = view.bounds[ordered[0]]
    waits = list(shares(first.held).items())[:2]
    if waits:
        two = " and ".join(f"{REASONS[reason].means} ({percent(of)})" for reason, of in waits)
        said.append(f"In {ordered[0].phase}, warps wait mostly for {two}.")
    gains = _gains(found, lambda finding: finding.phase or "")
    # What closes the distance to the roof depends on what limits the phase.
    advice = [
        f"{AGAINST.get(first.unit) or AGAINST.get(first.kind) or ADVICE[rule] if rule == ROOF else ADVICE[rule]} "
        f"({', '.join(phases)}: up to {percent(gain)} of the step)"
        for rule, (gain, phases) in list(gains.items())[:ACTIONS]
    ]
    if advice:
        said.append(f"To do: {'; '.join(advice)}.")
    return " ".join(said)


def _limited(bound: Bound) -> str:
    if bound.source == "timings":
        return str(bound)
    return f"by {bound}" + (f" for {percent(bound.share)} of it" if bound.share < MOSTLY else "")


def _gains(found: Sequence[Finding], place: Callable[[Finding], str]) -> dict[str, tuple[float, list[str]]]:
    """What the findings about single layers could save together by rule, most first, and where.

    The distance to the roof counts without what a more particular finding says of the same phase.
    """
    single = [it for it in found if it.layer and it.rule in ADVICE and stake(it) > 0]
    particular: dict[tuple[str | None, str | None], float] = {}
    for it in single:
        if it.rule != ROOF:
            particular[it.layer, it.phase] = particular.get((it.layer, it.phase), 0.0) + stake(it)
    gains: dict[str, tuple[float, list[str]]] = {}
    for it in single:
        more = stake(it) - (particular.get((it.layer, it.phase), 0.0) if it.rule == ROOF else 0.0)
        if more >= WORTH:
            gain, places = gains.get(it.rule, (0.0, []))
            gains[it.rule] = (gain + more, list(dict.fromkeys([*places, place(it)])))
    return dict(sorted(gains.items(), key=lambda item: -item[1][0]))


def _sentence(claim: str) -> str:
    """The claim as a sentence; what begins with a layer's name keeps it as it is."""
    first, _, rest = claim.partition(" ")
    return f"{first.capitalize() if first in BEGINNINGS else first} {rest}."
