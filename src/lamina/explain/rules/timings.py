"""Rules that need times, operation and byte counts, and roofs, but neither kernels nor counters."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain.roofline import LAUNCH_FACTOR
from lamina.explain.view import FACT, MATTERS, MODEL, STAKE, View, spread
from lamina.explain.wording import ms, name, names, percent, phases
from lamina.record import Finding, LayerRun
from lamina.record.wording import listed

MOST = 0.8
"""Part of the step whose layers are named first: what lies outside cannot gain more than a quarter on it."""
LOW = 0.5
"""Part of the attainable rate that tuned library kernels of ordinary shapes reach; below it something is
lost."""
HIGH = 1.05
"""Above the roof by more than measuring the roof itself varies."""
IMBALANCE = 2.0
"""How much less efficient than the other direction a phase must be; choosing among kernels explains less."""
GAP = 0.05
"""Part of the whole step that layers may leave unexplained: timing them one by one is no better than that."""
NOISY = 0.1
"""Interquartile range over median at which a time means little; a quiet machine shows a few percent."""


def dominant_layers(view: View) -> Iterator[Finding]:
    """Which layers take most of the step."""
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
        f"{len(taken)} of {len(times)} layers {verb} {percent(sum(taken.values()))} of the step: "
        f"{listed([f'{layer} ({percent(part)})' for layer, part in taken.items()])}"
    )
    rows = [row for row in view.rows if row.layer in taken]
    yield view.finding("dominant layers", claim, taken | {"total_us": total}, rows, FACT)


def far_below_roof(view: View) -> Iterator[Finding]:
    """Phases that matter and reach little of what their roof allows, largest possible gain first."""
    gains = {}
    for row in filter(view.matters, view.rows):
        roofline = view.roofline[row]
        if roofline.bound in ("compute", "memory") and roofline.share is not None and roofline.share < LOW:
            gains[row] = view.share[row] * (1 - roofline.share)
    for row, gain in sorted(gains.items(), key=lambda item: -item[1]):
        roofline = view.roofline[row]
        claim = (
            f"{name(row)} reaches {percent(roofline.share or 0)} of its {roofline.bound} roof; "
            f"at the roof the step would be {percent(gain)} shorter"
        )
        evidence = {
            "share of roof": roofline.share,
            "achieved_gflops": roofline.achieved_gflops,
            "attainable_gflops": roofline.attainable_gflops,
            "achieved_gbs": row.gbs,
            "intensity": roofline.intensity,
            "share of step": view.share[row],
            STAKE: gain,
        }
        yield view.finding("far below the roof", claim, evidence, [row], MODEL, row)


def imbalance(view: View) -> Iterator[Finding]:
    """A backward phase far less efficient than its forward, or the reverse.

    On any machine a phase takes the longer of operations over rate and bytes over bandwidth. The ratio of
    two phases' times therefore lies between the ratios of their operations and of their bytes, whatever the
    roofs.
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
                    f"where its work explains {expected:.1f} times at most"
                )
                evidence = {
                    "time ratio": times,
                    "explained ratio": expected,
                    f"{slow.phase}_us": slow.timing.median_us,
                    f"{quick.phase}_us": quick.timing.median_us,
                    STAKE: view.share[slow] * (1 - expected / times),
                }
                yield view.finding("imbalance", claim, evidence, [slow, quick], MODEL, slow)


def _explained(slow: LayerRun, quick: LayerRun) -> float | None:
    """The most by which work alone can make ``slow`` take longer; ``None`` where there is no bound."""
    work = ((slow.flops, quick.flops), (slow.bytes, quick.bytes))
    if any(s is None or q is None or (s and not q) for s, q in work):
        return None
    return max((s / q for s, q in work if s is not None and q), default=None)


def launch_bound(view: View) -> Iterator[Finding]:
    """Phases too short for the device to do much between launches."""
    short = [row for row in view.rows if view.roofline[row].bound == "launch"]
    part = sum(view.share[row] for row in short)
    if part >= MATTERS:
        claim = (
            f"{phases(short)} shorter than {LAUNCH_FACTOR:g} kernel launches, {percent(part)} of the step: "
            f"fusing them with their neighbours would help more than faster kernels ({names(short)})"
        )
        yield view.finding("launch bound", claim, {"phases": len(short), STAKE: part}, short, MODEL)


def above_roof(view: View) -> Iterator[Finding]:
    """Phases faster than their roof: a sign about the counts or the cache, not about the layer."""
    over = {row: share for row in view.rows if (share := view.roofline[row].share) is not None and share > HIGH}
    if over:
        claim = (
            f"{phases(list(over))} faster than the roof allows: operands that stay in the cache, or an "
            f"algorithm with fewer operations than the definition ({names(list(over))})"
        )
        evidence = {f"{name(row)} share of roof": share for row, share in over.items()}
        yield view.finding("above the roof", claim, evidence, list(over), MODEL)


def step_gap(view: View) -> Iterator[Finding]:
    """The step timed at once against the sum of its layers."""
    whole, parts = view.network.whole, view.network.step
    if whole is None or whole.timing is None or parts is None:
        return
    if any(row.key in view.launches for row in view.rows):
        return  # then its kernels tell more
    apart = whole.timing.q1_us > parts.q3_us or whole.timing.q3_us < parts.q1_us
    gap = (whole.timing.median_us - parts.median_us) / whole.timing.median_us
    if not apart or abs(gap) < GAP:
        return
    both = f"the whole step takes {ms(whole.timing.median_us)}, its layers one by one {ms(parts.median_us)}"
    if gap > 0:
        claim = f"{both}: {percent(gap)} of the step is spent between the layers"
    else:
        claim = f"{both}: together the layers overlap or find their operands in the cache"
    evidence = {"whole_us": whole.timing.median_us, "layers_us": parts.median_us, "gap": gap, STAKE: max(gap, 0.0)}
    yield view.finding("step gap", claim, evidence, [whole, *view.rows], FACT)


def without_time(view: View) -> Iterator[Finding]:
    """Rows that failed or were skipped, together where the reason is the same."""
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


def noisy(view: View) -> Iterator[Finding]:
    """Phases that matter and whose times vary too much to lean on."""
    rows = [row for row in view.rows if view.matters(row) and spread(row) > NOISY]
    if rows:
        claim = (
            f"the times of {names(rows)} vary by more than {percent(NOISY)}: "
            "take more samples or lock the clocks before comparing them"
        )
        evidence = {f"{name(row)} spread": spread(row) for row in rows}
        yield view.finding("noisy", claim, evidence, [], FACT, rows[0] if len(rows) == 1 else None)
