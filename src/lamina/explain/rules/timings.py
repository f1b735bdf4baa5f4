"""Rules that need times, FLOP and byte counts and measured peaks, but neither kernels nor counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lamina.explain.patterns import patterns
from lamina.explain.roofline import LAUNCH_FACTOR
from lamina.explain.view import FACT, MATTERS, MODEL, SAVING, View, spread
from lamina.explain.wording import ms, name, names, percent, phases
from lamina.record import Finding, LayerRun
from lamina.record.noise import disturbed
from lamina.record.wording import listed

MOST = 0.8
"""Fraction of the step covered by the dominant layers: the others can save at most a quarter as much."""
LOW = 0.5
"""Fraction of the roofline that tuned library kernels reach for ordinary shapes."""
HIGH = 1.05
"""Fraction of the roofline that is above it by more than the variation of the measured peaks."""
IMBALANCE = 2.0
"""Least ratio of efficiencies between two directions; kernel selection alone explains smaller ones."""
GAP = 0.05
"""Fraction of the step by which the sum of its layers may differ: the accuracy of timing layers one by one."""
NOISY = 0.1
"""Interquartile range over median above which a time is noisy; an idle machine has a few percent."""


def dominant_layers(view: View) -> Iterator[Finding]:
    """The layers that take most of the step."""
    total = view.network.measured_us
    times = {layer.layer: sum(span.median_us for span in layer.phases.values()) for layer in view.network.layers}
    if total <= 0 or len(times) < 2:
        return
    taken: dict[str, float] = {}
    for layer, time in sorted(times.items(), key=lambda item: -item[1]):
        taken[layer] = time / total
        if sum(taken.values()) >= MOST:
            break
    verb = "takes" if len(taken) == 1 else "take"
    claim = (
        f"{len(taken)} of {len(times)} layers {verb} {percent(sum(taken.values()))} of the step: {_with_parts(taken)}"
    )
    rows = [row for row in view.rows if row.layer in taken]
    yield view.finding("dominant layers", claim, taken | {"total_us": total}, rows, FACT)


def _with_parts(taken: Mapping[str, float]) -> str:
    """Layers with their parts of the step, largest first; layers that repeat together."""
    groups = [(sum(taken[layer] for layer in of), pattern, of) for pattern, of in patterns(taken).items()]
    said = [
        f"{pattern} ({f'{len(of)} layers, ' if len(of) > 1 else ''}{percent(part)})"
        for part, pattern, of in sorted(groups, key=lambda it: -it[0])
    ]
    return listed(said)


def below_roofline(view: View) -> Iterator[Finding]:
    """Significant phases far below their roofline, largest potential saving first."""
    gains = {}
    for row in filter(view.matters, view.rows):
        roofline = view.roofline[row]
        if roofline.bound in ("compute", "memory") and roofline.share is not None and roofline.share < LOW:
            gains[row] = view.share[row] * (1 - roofline.share)
    for row, gain in sorted(gains.items(), key=lambda item: -item[1]):
        roofline = view.roofline[row]
        claim = (
            f"{name(row)} reaches {percent(roofline.share or 0)} of its {roofline.bound} roofline; "
            f"at the roofline the step would be {percent(gain)} shorter"
        )
        evidence = {
            "share of roofline": roofline.share,
            "achieved_gflops": roofline.achieved_gflops,
            "attainable_gflops": roofline.attainable_gflops,
            "achieved_gbs": row.gbs,
            "intensity": roofline.intensity,
            "share of step": view.share[row],
            SAVING: gain,
        }
        yield view.finding("below roofline", claim, evidence, [row], MODEL, row)


def imbalance(view: View) -> Iterator[Finding]:
    """A backward phase that is far less efficient than the forward phase, or the reverse.

    By the roofline model, a phase takes the larger of operations over rate and bytes over bandwidth. The ratio of two
    phases' times therefore lies between the ratio of their operations and that of their bytes, whatever the peaks.
    """
    present = {(row.layer, row.phase): row for row in view.rows}
    for back in view.rows:
        forward = present.get((back.layer, "forward"))
        if forward is None or not back.phase.startswith("backward"):
            continue
        if "launch" in (view.roofline[forward].bound, view.roofline[back].bound):
            continue
        for slow, quick in ((back, forward), (forward, back)):
            expected = _explained(slow, quick)
            if slow.timing is None or quick.timing is None or expected is None or not view.matters(slow):
                continue
            if slow.timing.q1_us > IMBALANCE * expected * quick.timing.q3_us:
                times = slow.timing.median_us / quick.timing.median_us
                claim = (
                    f"{name(slow)} takes {times:.1f} times as long as {quick.phase}, "
                    f"its FLOPs and bytes explain at most {expected:.1f} times"
                )
                evidence = {
                    "time ratio": times,
                    "explained ratio": expected,
                    f"{slow.phase}_us": slow.timing.median_us,
                    f"{quick.phase}_us": quick.timing.median_us,
                    SAVING: view.share[slow] * (1 - expected / times),
                }
                yield view.finding("imbalance", claim, evidence, [slow, quick], MODEL, slow)


def _explained(slow: LayerRun, quick: LayerRun) -> float | None:
    """The largest time ratio that the work of the two phases explains; ``None`` if there is no bound."""
    work = ((slow.flops, quick.flops), (slow.bytes, quick.bytes))
    if any(s is None or q is None or (s and not q) for s, q in work):
        return None
    return max((s / q for s, q in work if s is not None and q), default=None)


def launch_bound(view: View) -> Iterator[Finding]:
    """Phases dominated by launch overhead."""
    short = [row for row in view.rows if view.roofline[row].bound == "launch"]
    part = sum(view.share[row] for row in short)
    if part >= MATTERS:
        claim = (
            f"{phases(short)} shorter than {LAUNCH_FACTOR:g} kernel launches, {percent(part)} of the step: "
            f"fuse them with adjacent layers; faster kernels would not help ({names(short)})"
        )
        yield view.finding("launch bound", claim, {"phases": len(short), SAVING: part}, short, MODEL)


def above_roofline(view: View) -> Iterator[Finding]:
    """Phases above their roofline, because of cache hits or of FLOP counts that do not apply."""
    over = {row: share for row in view.rows if (share := view.roofline[row].share) is not None and share > HIGH}
    if over:
        claim = (
            f"{phases(list(over))} above the roofline: operands stay in the cache, or the "
            f"algorithm needs fewer operations than the definition ({names(list(over))})"
        )
        evidence = {f"{name(row)} share of roofline": share for row, share in over.items()}
        yield view.finding("above roofline", claim, evidence, list(over), MODEL)


def step_gap(view: View) -> Iterator[Finding]:
    """The time of the whole step against the sum of its layers."""
    whole, parts = view.network.whole, view.network.step
    if whole is None or whole.timing is None or parts is None or not view.network.layers:
        return
    if any(row.key in view.launches for row in view.rows):
        return  # ``launch_overhead`` is more precise
    apart = whole.timing.q1_us > parts.q3_us or whole.timing.q3_us < parts.q1_us
    gap = (whole.timing.median_us - parts.median_us) / whole.timing.median_us
    if not apart or abs(gap) < GAP:
        return
    both = f"the whole step takes {ms(whole.timing.median_us)}, its layers timed separately {ms(parts.median_us)}"
    if gap > 0:
        claim = f"{both}: {percent(gap)} of the step is spent between the layers"
    else:
        claim = f"{both}: in the step the layers overlap or find their operands in the cache"
    evidence = {"whole_us": whole.timing.median_us, "layers_us": parts.median_us, "gap": gap, SAVING: max(gap, 0.0)}
    yield view.finding("step gap", claim, evidence, [whole, *view.rows], FACT)


def without_time(view: View) -> Iterator[Finding]:
    """Rows that failed or were skipped, grouped by reason."""
    groups: dict[tuple[str, str], list[LayerRun]] = {}
    for row in view.rows:
        if row.outcome != "ok":
            groups.setdefault((row.outcome, row.reason), []).append(row)
    for (outcome, reason), rows in groups.items():
        were = "was" if len(rows) == 1 else "were"
        happened = f"{were} skipped" if outcome == "skipped" else outcome
        claim = f"{names(rows)} {happened}: {reason}"
        about = rows[0] if len(rows) == 1 else None
        yield view.finding(outcome, claim, {"phases": len(rows), "reason": reason}, [], FACT, about)


def busy_machine(view: View) -> Iterator[Finding]:
    """Times that other processes, a hypervisor or a quota disturbed, as seen while they were taken."""
    if claim := disturbed(view.rows):
        yield view.finding("busy machine", claim, {"times": sum(row.disturbed for row in view.rows)}, [], FACT)


def noisy(view: View) -> Iterator[Finding]:
    """Significant phases whose times vary too much to be compared."""
    rows = [row for row in view.rows if view.matters(row) and spread(row) > NOISY]
    if rows:
        claim = (
            f"the times of {names(rows)} vary by more than {percent(NOISY)}: "
            "take more samples or lock the clocks before comparing them"
        )
        evidence = {f"{name(row)} spread": spread(row) for row in rows}
        yield view.finding("noisy", claim, evidence, [], FACT, rows[0] if len(rows) == 1 else None)
