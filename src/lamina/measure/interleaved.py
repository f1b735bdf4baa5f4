"""Interleaved (A/B) timing: callables take turns, so that a drift of clocks or load meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf
from typing import Protocol, TypeVar

from lamina.errors import UnsupportedError, UsageError
from lamina.measure.repeat import quartiles
from lamina.measure.stopwatch import Stopwatch
from lamina.measure.turns import alone
from lamina.record.timing import Timing, Turns

K = TypeVar("K", bound=Hashable)

Draw = Callable[[int], Sequence[float]]
"""Draws so many samples, in microseconds per call."""

LEAST_ROUNDS = 3
"""Rounds that a time limit leaves."""

MANY = 50
"""Samples of a short call in a round."""


class Sampling(Protocol):
    """A clock that prepares a callable once and then draws samples of it at any time."""

    @property
    def name(self) -> str: ...

    def sampler(self, fn: Callable[[], object]) -> Draw: ...


def interleaved(
    clock: Sampling,
    fns: Mapping[K, Callable[[], object]],
    *,
    rounds: int = 9,
    samples: int = 3,
    limit_s: float = inf,
    least_us: float = 0.0,
) -> Turns[K]:
    """The Timing of each callable over rounds in which all of them take turns, or what went wrong with it.

    A round's time is the median of its samples; the Timing's quartiles are over rounds. Every other round goes in the
    opposite order. Where the samples of a callable would last less than ``least_us``, there are more, `MANY` at most:
    what disturbs a machine for a while is then a part of each round. No round begins after ``limit_s`` seconds of
    rounds, but there are at least three if so many were asked for; where three would take longer, all but the first
    have fewer samples.

    Raises:
        UsageError: less than one round or sample.
    """
    if rounds < 1 or samples < 1:
        raise UsageError(f"expected at least one round and one sample, got {rounds} and {samples}")
    draws: dict[K, Draw] = {}
    found: dict[K, Timing | Exception] = {}
    with alone():
        for key, fn in fns.items():  # warm-up and capture, which would disturb others that time
            try:
                draws[key] = clock.sampler(fn)
            except (RuntimeError, UnsupportedError) as error:
                found[key] = error
        if least_us and draws:
            longest = max(draw(1)[0] for draw in draws.values())
            samples = max(samples, min(MANY, int(least_us / longest)))
        times: dict[K, list[float]] = {key: [] for key in draws}
        watch = Stopwatch()
        for index in range(rounds):
            if index >= LEAST_ROUNDS and watch.seconds >= limit_s:
                break
            for key in list(draws)[:: 1 if index % 2 == 0 else -1]:
                times[key].append(statistics.median(draws[key](samples)))
            if index == 0:
                samples = _within(limit_s, watch.seconds, samples)
    for key, seen in times.items():
        q1, median, q3 = quartiles(seen)
        found[key] = Timing(clock.name, "-" if clock.name == "cpu" else "warm", median, q1, q3, len(seen))
    return Turns(found, {key: tuple(seen) for key, seen in times.items()})


def _within(limit_s: float, round_s: float, samples: int) -> int:
    """How many samples a round may have after the first, so that so many rounds as must be fit into the limit."""
    rest = (limit_s - round_s) / (LEAST_ROUNDS - 1)
    if rest <= 0:
        return 1
    return samples if rest >= round_s else max(1, int(samples * rest / round_s))
