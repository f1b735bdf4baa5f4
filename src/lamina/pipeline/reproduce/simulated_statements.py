"""Checks of a paper's statements about its simulations against ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from lamina.errors import UsageError, nearest
from lamina.pipeline.reproduce.points import HIT_RATE, LATENCY, SPEEDUP, TRANSACTIONS, Pair, quantity
from lamina.pipeline.reproduce.sample import Held

BATCH, PATTERN, RANDOM = "batch", "pattern", "iid"
Pairs = Sequence[Pair]
Check = Callable[[Pairs], Held]


def check(name: str, pairs: Pairs) -> Held:
    """Check a statement against simulated points.

    Raises:
        UsageError: there is no such rule.
    """
    if name not in CHECKS:
        raise UsageError(f"check {name!r} is unknown: {nearest(name, CHECKS)}")
    return CHECKS[name](pairs)


def _speedup_grows_with_batch(pairs: Pairs) -> Held:
    return _along_batch(pairs, SPEEDUP, rising=True)


def _transactions_fall_with_batch(pairs: Pairs) -> Held:
    return _along_batch(pairs, TRANSACTIONS, rising=False)


def _hit_rate_rises_with_batch(pairs: Pairs) -> Held:
    return _along_batch(pairs, HIT_RATE, rising=True)


def _clusters_beat_random(pairs: Pairs) -> Held:
    """Each pattern against iid zeros of the same workload at the same settings."""
    random = {_without(pair, PATTERN): pair for pair in pairs if pair.point.settings.get(PATTERN) == RANDOM}
    compared = [
        (pair.speedup, random[_without(pair, PATTERN)].speedup)
        for pair in pairs
        if pair.point.settings.get(PATTERN) != RANDOM and _without(pair, PATTERN) in random
    ]
    return _counted([(one > other) for one, other in compared if one is not None and other is not None], "of {} pairs")


def _transactions_fall(pairs: Pairs) -> Held:
    return _against_baseline(pairs, TRANSACTIONS, lambda ratio, pair: ratio < 1)


def _latency_falls(pairs: Pairs) -> Held:
    return _against_baseline(pairs, LATENCY, lambda ratio, pair: ratio < 1)


def _hit_rate_rises(pairs: Pairs) -> Held:
    def higher(rate: float, pair: Pair) -> bool:
        found = pair.counted(HIT_RATE)
        return found is not None and rate > found[1]

    return _against_baseline(pairs, HIT_RATE, higher)


def _against_baseline(pairs: Pairs, name: str, better: Callable[[float, Pair], bool]) -> Held:
    found = [(value, pair) for pair in pairs if (value := quantity(name, pair)) is not None]
    if not found:
        return Held(f"no {name} was counted", None)
    held = _counted([better(value, pair) for value, pair in found], "of {} points")
    values = [value for value, _ in found]
    return Held(f"{held.ours}; {min(values):.3g} to {max(values):.3g}", held.holds)


def _along_batch(pairs: Pairs, name: str, rising: bool) -> Held:
    steps = []
    for series in _series(pairs):
        for before, after in pairwise(quantity(name, pair) for pair in series):
            if before is not None and after is not None:
                steps.append(after > before if rising else after < before)
    return _counted(steps, "of {} steps to a larger batch")


def _series(pairs: Pairs) -> Iterator[list[Pair]]:
    """Points that differ only in their batch size, sorted by it."""
    alike: dict[object, list[Pair]] = {}
    for pair in pairs:
        if BATCH in pair.point.settings:
            alike.setdefault(_without(pair, BATCH), []).append(pair)
    for series in alike.values():
        yield sorted(series, key=lambda pair: int(pair.point.settings[BATCH]))


def _without(pair: Pair, name: str) -> tuple[object, ...]:
    """The key of a point without one of its settings."""
    return pair.point.work, *((key, value) for key, value in sorted(pair.point.settings.items()) if key != name)


def _counted(verdicts: Sequence[bool], among: str) -> Held:
    if not verdicts:
        return Held("nothing to compare", None)
    return Held(f"at {sum(verdicts)} {among.format(len(verdicts))}", all(verdicts))


CHECKS: Mapping[str, Check] = {
    rule.__name__.strip("_"): rule
    for rule in (
        _speedup_grows_with_batch,
        _transactions_fall_with_batch,
        _hit_rate_rises_with_batch,
        _clusters_beat_random,
        _transactions_fall,
        _latency_falls,
        _hit_rate_rises,
    )
}
"""All checks, by the name in entries."""
