"""Comparison of two runs, layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lamina.errors import UsageError
from lamina.explain.steps import WHOLE
from lamina.record import LayerRun, Timing
from lamina.record.comparison import AXES, Axis, Comparison, Setting, Verdict, agree, grid, setting, value

Key = tuple[str, str, Setting]

MIN_SAMPLES = 4
"""Quartiles of fewer samples have an empty quarter, so they cannot separate a difference from noise."""


def per_item(rows: Iterable[LayerRun]) -> tuple[LayerRun, ...]:
    """The rows with each time divided by its batch size: the time of one sample, to compare batch sizes."""
    return tuple(row if row.timing is None else replace(row, timing=_divided(row.timing, row.batch)) for row in rows)


def overall(comparisons: Iterable[Comparison]) -> float | None:
    """Speedup of ``b`` over ``a``, summed over all paired phases (not the whole step); ``None`` if there are none."""
    pairs = [
        (it.a.timing, it.b.timing)
        for it in comparisons
        if it.a and it.b and it.phase != WHOLE and it.verdict != "unmatched"
    ]
    both = [(a.median_us, b.median_us) for a, b in pairs if a and b]
    later = sum(b for _, b in both)
    return sum(a for a, _ in both) / later if later else None


def regressions(comparisons: Iterable[Comparison], percent: float) -> tuple[str, ...]:
    """What got worse from ``a`` to ``b``, for a check in CI: a text for each pair, lost times and the slowest first.

    That is a time that is more than ``percent`` longer, beyond the spread of the samples, and a phase that ``a`` timed
    and ``b`` did not, or not by the implementation that its row names.

    Raises:
        UsageError: a time would be judged by too few samples, or there is none in ``a``.
    """
    timed = [it for it in comparisons if it.a and it.a.timing]
    unclear = [it for it in timed if it.verdict == "unclear"]
    if not timed or unclear:
        what = f"{len(unclear)} of {len(timed)} phases have too few samples" if timed else "the first run has no time"
        raise UsageError(f"expected at least {MIN_SAMPLES} samples of each phase, to judge its time: {what}")
    worse = []
    for it in timed:
        if it.verdict == "unmatched" and not (it.b and it.b.timing and not it.b.fell_back):
            worse.append((0.0, f"{it.layer} {it.phase}: {it.reason}"))
        elif it.verdict == "slower" and it.speedup and 1 / it.speedup > 1 + percent / 100:
            worse.append((it.speedup, f"{it.layer} {it.phase}: {100 / it.speedup - 100:.1f} % longer"))
    return tuple(text for _, text in sorted(worse, key=lambda each: each[0]))


def _divided(timing: Timing, by: int) -> Timing:
    return replace(timing, median_us=timing.median_us / by, q1_us=timing.q1_us / by, q3_us=timing.q3_us / by)


def compare(a_rows: Sequence[LayerRun], b_rows: Sequence[LayerRun]) -> tuple[Comparison, ...]:
    """Pair the rows of ``a`` with those of ``b`` and report where ``b`` is faster, slower or the same.

    Rows are paired by layer, by phase, and by the axes on which either run has several values. An axis on which each
    run has one value may differ between them: ``Comparison.differs`` names it. Rows without a partner are listed as
    ``unmatched``, first those of ``a``, then those of ``b``.

    Raises:
        UsageError: a run has the same row twice.
    """
    axes = tuple(axis for axis in AXES if axis in grid(a_rows) or axis in grid(b_rows))
    a_by_key, b_by_key = _index("first", a_rows, axes), _index("second", b_rows, axes)
    free: dict[tuple[str, str], list[Key]] = {}
    for key in b_by_key:
        free.setdefault(key[:2], []).append(key)
    pairs = []
    for key, a in a_by_key.items():
        candidates = free.get(key[:2], [])
        match = next((other for other in candidates if agree(key[2], other[2])), None)
        if match is None:
            pairs.append(_alone(a, None, key))
        else:
            candidates.remove(match)
            pairs.append(_pair(a, b_by_key[match]))
    left = {key for candidates in free.values() for key in candidates}
    pairs += [_alone(None, b, key) for key, b in b_by_key.items() if key in left]
    return tuple(pairs)


def _index(which: str, rows: Sequence[LayerRun], axes: Sequence[Axis]) -> dict[Key, LayerRun]:
    keys = [(row.layer, row.phase, setting(row, axes)) for row in rows]
    twice = [f"{layer} {phase}" for (layer, phase, _), count in Counter(keys).items() if count > 1]
    if twice:
        raise UsageError(
            f"the {which} run has {len(twice)} duplicate rows ({', '.join(twice[:3])}); "
            "compare needs each layer and phase once per setting: choose one run, or filter its rows"
        )
    return dict(zip(keys, rows, strict=True))


def _alone(a: LayerRun | None, b: LayerRun | None, key: Key) -> Comparison:
    where = ", ".join(f"{axis} {at}" for axis, at in key[2] if at is not None)
    absent = "second" if a else "first"
    reason = f"not in the {absent} run{f' with {where}' if where else ''}"
    return Comparison(key[0], key[1], a, b, None, "unmatched", reason=reason)


def _pair(a: LayerRun, b: LayerRun) -> Comparison:
    sides = {axis: (value(a, axis), value(b, axis)) for axis in AXES}
    differs = {axis: (x, y) for axis, (x, y) in sides.items() if x is not None and y is not None and x != y}
    if a.timing is None or b.timing is None:
        reasons = [
            f"{row.outcome} in the {which} run: {row.reason}"
            for which, row in (("first", a), ("second", b))
            if row.timing is None
        ]
        return Comparison(a.layer, a.phase, a, b, None, "unmatched", differs, "; ".join(reasons))
    if reason := _fallback(a, b):
        return Comparison(a.layer, a.phase, a, b, None, "unmatched", differs, reason)
    verdict: Verdict = "faster" if b.timing.median_us < a.timing.median_us else "slower"
    if min(a.timing.n, b.timing.n) < MIN_SAMPLES:
        verdict, reason = "unclear", f"fewer than {MIN_SAMPLES} samples: the spread is unknown"
    elif a.timing.overlaps(b.timing):
        verdict = "same"
    # A phase without kernels, such as a reshape, has no device time to divide by.
    speedup = a.timing.median_us / b.timing.median_us if b.timing.median_us else None
    return Comparison(a.layer, a.phase, a, b, speedup, verdict, differs, reason)


def _fallback(a: LayerRun, b: LayerRun) -> str:
    """Why two times are no speedup: one side ran dense instead of what it is a row of; empty if they may be one.

    The same implementation that fell back on both sides is compared: dense with dense.
    """
    if (a.impl, a.executed_impl) == (b.impl, b.executed_impl):
        return ""
    return "; ".join(
        f"{row.impl} ran {row.executed_impl} in the {which} run: {row.selection_reason}".removesuffix(": ")
        for which, row in (("first", a), ("second", b))
        if row.fell_back
    )
