"""Checks of a paper's statements about its simulations against ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from lamina.errors import UsageError, nearest
from lamina.pipeline.reproduce.networks import weighted
from lamina.pipeline.reproduce.points import (
    ARITHMETIC,
    CONVERSION_SLOTS,
    HIT_RATE,
    LATENCY,
    OFF_CHIP,
    ON_CHIP,
    ON_CHIP_BYTES,
    SPEEDUP,
    TRANSACTIONS,
    Pair,
    quantity,
)
from lamina.pipeline.reproduce.sample import Held

BATCH, PATTERN, RANDOM, RECORDED = "batch", "pattern", "iid", "recorded"
CONVERSION, SOFTWARE, UNIT_16, UNIT_8 = "conversion", "deft-16q", "dfu_cvt_16", "dfu_cvt_8"
HALF = 0.55
"""Upper bound of what counts as half, which is a tenth more."""
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
    patterns = {str(pair.point.settings.get(PATTERN)) for pair in pairs} - {RANDOM}
    compared = [each for name in sorted(patterns) for each in _beside(pairs, PATTERN, name, RANDOM, SPEEDUP)]
    return _counted([one > other for one, other in compared], "of {} pairs")


def _recorded_beats_random(pairs: Pairs) -> Held:
    """Recorded masks against iid zeros of the same density."""
    compared = _beside(pairs, PATTERN, RECORDED, RANDOM, SPEEDUP)
    return _compared([(one, other, one > other) for one, other in compared])


def _unit_converts_in_half_the_time(pairs: Pairs) -> Held:
    """Issue slots of conversions with the unit against those of software, at both widths."""
    widths = [_beside(pairs, CONVERSION, name, SOFTWARE, CONVERSION_SLOTS) for name in (UNIT_16, UNIT_8)]
    return _compared([(one, other, one < other / 2) for compared in widths for one, other in compared])


def _eight_bits_convert_less(pairs: Pairs) -> Held:
    """Issue slots of conversions of 8-bit words with the unit against those of 16-bit words."""
    compared = _beside(pairs, CONVERSION, UNIT_8, UNIT_16, CONVERSION_SLOTS)
    return _compared([(one, other, one < other) for one, other in compared])


def _on_chip_bytes_halve(pairs: Pairs) -> Held:
    return _against_baseline(pairs, ON_CHIP_BYTES, lambda ratio, pair: ratio < HALF)


def _on_chip_memory_is_used_most(pairs: Pairs) -> Held:
    """For each network and kernel, over its layers, weighted by time."""
    kernels: dict[object, list[Pair]] = {}
    for pair in pairs:
        kernels.setdefault((pair.point.settings.get("network"), *sorted(pair.point.axes.items())), []).append(pair)
    found = [[weighted(name, own) for name in (ON_CHIP, OFF_CHIP, ARITHMETIC)] for own in kernels.values()]
    known = [(on, off, units) for on, off, units in found if on is not None and off is not None and units is not None]
    held = _counted([on > max(off, units) for on, off, units in known], "of {} networks and kernels")
    if not known:
        return held
    uses = zip(("on-chip", "off-chip", "arithmetic"), zip(*known, strict=True), strict=True)
    ends = ", ".join(f"{name} {min(values):.0%} to {max(values):.0%}" for name, values in uses)
    return Held(f"{held.ours}; {ends}", held.holds)


def _beside(pairs: Pairs, setting: str, one: str, other: str, name: str) -> list[tuple[float, float]]:
    """A quantity of the points with one value of a setting, beside that of equal points with another."""
    there = {_without(pair, setting): pair for pair in pairs if pair.point.settings.get(setting) == other}
    both = [
        (quantity(name, pair), quantity(name, there[_without(pair, setting)]))
        for pair in pairs
        if pair.point.settings.get(setting) == one and _without(pair, setting) in there
    ]
    return [(ours, its) for ours, its in both if ours is not None and its is not None]


def _compared(found: Sequence[tuple[float, float, bool]]) -> Held:
    """Verdicts of pairs, with the range of their ratios."""
    held = _counted([verdict for *_, verdict in found], "of {} pairs")
    ratios = [one / other for one, other, _ in found if other]
    return Held(f"{held.ours}; {min(ratios):.3g} to {max(ratios):.3g} x", held.holds) if ratios else held


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
        _recorded_beats_random,
        _unit_converts_in_half_the_time,
        _eight_bits_convert_less,
        _on_chip_bytes_halve,
        _on_chip_memory_is_used_most,
        _transactions_fall,
        _latency_falls,
        _hit_rate_rises,
    )
}
"""All checks, by the name in entries."""
