"""The answer: a few findings of one line each, with what they cost and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lamina.explain.findings import idle_gpu, ranked, views
from lamina.explain.paragraphs import ADVICE_BY_LIMITER, BELOW_ROOFLINE
from lamina.explain.patterns import repeated
from lamina.explain.rules import RULES
from lamina.explain.view import FACT, SAVING, View, potential_saving
from lamina.explain.wording import name, names, percent
from lamina.record import Counter, Finding, KernelRun, LayerRun, Roofs
from lamina.record.wording import place

MOST = 5
"""Headlines of a setting."""
MIN_SAVING = 0.02
"""Smallest potential saving, as a fraction of the step, of a headline."""
LAUNCHES = ("launch overhead", "launch bound", "small kernels", "step gap")
"""Rules that CUDA graphs or the compiler answer, measured ones first: one headline of them is enough."""
REPEATED = "repeated below roofline"
ADVISED = ("excess DRAM traffic", "layout conversions")
"""Rules whose claims end with what to do, after a colon."""

WHOLE_STEP = {
    "idle SMs": "grids do not fill the GPU, and idle SMs cost {saving} of {time}: use a larger batch, smaller tiles or "
    "split-K",
    "layout conversions": "{kernels:.0f} layout conversions take {saving} of {time}: use channels-last (--layout nhwc)",
    "small kernels": "{kernels:.0f} of {of:.0f} kernels are shorter than 5 us and take {saving} of {time}: fuse them "
    "(torch.compile) or replay a CUDA graph",
    "launch bound": "{phases} phases are shorter than 2 kernel launches and take {saving} of {time}: fuse them "
    "(torch.compile), since faster kernels would not help",
    "step gap": "{saving} of the step is spent between its layers: profile it for operations outside of layers, or "
    "use torch.compile",
}
"""Headlines about the whole step, by rule; the names in braces are evidence."""
ACTIONS = {
    "imbalance": "try another algorithm for this phase (autotuning, channels-last)",
    "tensor cores idle": "use tf32 or bf16, or pad the sizes",
    "excess DRAM traffic": "fuse its kernels or keep intermediate results in L2",
    "layout conversions": "use channels-last (--layout nhwc)",
    "launch overhead": "use torch.compile or CUDA graphs",
}
"""What to do about a layer, by rule."""
BELOW = {
    "memory": "fuse it with its neighbours (torch.compile) or use a smaller data type",
    "compute": "use faster kernels: another algorithm, channels-last, tensor cores or a larger batch",
}
"""What to do far below a roofline, by what bounds there; counters give better advice."""
DOMINANT = "'lamina what-if' predicts what changing them would gain"


@dataclass(frozen=True)
class _Candidate:
    """A possible headline: what it is about, and its claim."""

    subject: str
    rule: str
    claim: str
    saving: float
    finding: Finding


def headlines(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
) -> tuple[Finding, ...]:
    """At most ``MOST`` findings for each setting, each one line: what, how much of the step, and what to do.

    An idle GPU comes first, then failures and a busy machine, then the largest potential savings, then the layers that
    take most of the time. Layers that repeat are one headline. Savings of different headlines overlap and do not add
    up.
    """
    return tuple(it for view in views(rows, roofs, kernels, counters) for it in _of_view(view))


def _of_view(view: View) -> list[Finding]:
    found = ranked([finding for rule in RULES for finding in rule(view)])
    idle = [it for it in found if idle_gpu(it)]
    time = "the GPU time" if idle else "the step"
    ends = [_dominant(view, it, time) for it in found if it.rule == "dominant layers"]
    made = [*idle, *_failures(view), *(it for it in found if it.rule == "busy machine")]
    candidates = [*_of_step(view, found, time), *_of_layers(view, found, time)]
    measured = any(it.rule == "launch overhead" and it.finding.layer is None for it in candidates)
    about = set(LAUNCHES) if idle else set(LAUNCHES[1:]) if measured else set()
    for it in sorted(candidates, key=lambda it: -it.saving):
        subjects = {it.subject, *(LAUNCHES[1:] if it.rule in LAUNCHES[1:] else [])}
        if it.saving >= MIN_SAVING and not subjects & about and len(made) + len(ends) < MOST:
            about |= subjects
            made.append(_headline(view, it.finding, it.claim, it.saving))
    return [*made, *ends][:MOST]


def _headline(view: View, of: Finding, claim: str, saving: float | None = None) -> Finding:
    """A finding with another claim."""
    evidence = dict(of.evidence) | ({} if saving is None else {SAVING: saving})
    where = place(view.setting)
    return replace(of, claim=f"{where}: {claim}" if where else claim, evidence=evidence)


def _bare(view: View, finding: Finding) -> str:
    """A claim without the setting before it."""
    return finding.claim.removeprefix(f"{place(view.setting)}: ")


def _dominant(view: View, finding: Finding, time: str) -> Finding:
    claim = _bare(view, finding).replace(" of the step:", f" of {time}:", 1)
    return _headline(view, finding, f"{claim}; {DOMINANT}")


def _failures(view: View) -> list[Finding]:
    """One headline for all phases that failed."""
    failed = [row for row in view.rows if row.outcome == "failed"]
    if not failed:
        return []
    reasons = list(dict.fromkeys(row.reason for row in failed))
    more = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
    phases = "phase" if len(view.rows) == 1 else "phases"
    claim = f"{len(failed)} of {len(view.rows)} {phases} failed: {names(failed)}: {reasons[0]}{more}"
    return [view.finding("failed", claim, {"phases": float(len(failed)), "reason": reasons[0]}, [], FACT)]


def _of_step(view: View, found: Sequence[Finding], time: str) -> Iterator[_Candidate]:
    """Headlines about the whole step."""
    for it in found:
        saving = potential_saving(it)
        if it.layer is None and it.rule in WHOLE_STEP:
            claim = WHOLE_STEP[it.rule].format(**(dict(it.evidence) | {"saving": percent(saving), "time": time}))
            yield _Candidate(it.rule, it.rule, claim, saving, it)
        elif it.layer is None and it.rule == "launch overhead":
            yield _Candidate(it.rule, it.rule, _bare(view, it), saving, it)


def _of_layers(view: View, found: Sequence[Finding], time: str) -> Iterator[_Candidate]:
    """Headlines about layers: the findings of one rule about layers that repeat are one, in all their phases."""
    pattern_of = {layer: pattern for pattern, layers in view.repeats.items() for layer in layers}
    groups: dict[tuple[str, str], dict[str, list[Finding]]] = {}
    for it in found:
        if it.rule == REPEATED:
            about = str(it.evidence["pattern"]), str(it.evidence["phase"])
        elif it.layer is not None and it.phase is not None and (it.rule in ACTIONS or it.rule == BELOW_ROOFLINE):
            about = pattern_of[it.layer], it.phase
        else:
            continue
        rule = BELOW_ROOFLINE if it.rule == REPEATED else it.rule
        groups.setdefault((rule, about[0]), {}).setdefault(about[1], []).append(it)
    rows = {(row.layer, row.phase): row for row in view.rows}
    for (rule, pattern), phases in groups.items():
        savings = {phase: sum(map(potential_saving, members)) for phase, members in phases.items()}
        phase = max(savings, key=lambda phase: savings[phase])
        members = phases[phase]
        largest = max(members, key=potential_saving)
        claim = _bare(view, largest).partition("; ")[0]
        row = rows[str(largest.layer or largest.evidence["longest"]), phase]
        if largest.rule != REPEATED and len(members) > 1:
            layers = [it.layer or "" for it in members]
            claim = f"{repeated(pattern, layers)} {phase}{claim.removeprefix(name(row))}"
        if rule in ADVISED:
            claim = claim.partition(": ")[0]
        others = [other for other in phases if other != phase]
        claim += f"; with {' and '.join(others)}" if others else ","
        saving = min(sum(savings.values()), 1.0)
        action = ACTIONS.get(rule) or _below(view, row)
        yield _Candidate(pattern, rule, f"{claim} up to {percent(saving)} of {time}: {action}", saving, largest)


def _below(view: View, row: LayerRun) -> str:
    """What to do about a phase far below its roofline."""
    bound = view.bounds[row]
    counted = ADVICE_BY_LIMITER.get(bound.unit) or ADVICE_BY_LIMITER.get(bound.kind)
    return counted if counted and bound.source == "counters" else BELOW.get(view.roofline[row].bound, BELOW["compute"])
