"""Which layers to change, and how far: a sequence of plans from the most accurate to the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

Choice = Mapping[str, str]
"""The implementation of each layer that is not dense."""


@dataclass(frozen=True)
class Option:
    """An implementation of a layer.

    Attributes:
        impl: such as ``circulant[block_size=64,impl=kernel]``.
        saved_us: dense time less its time.
        damage: what the network's outputs lose, such as their relative error; 0 for none.
        parts: its time over the dense one of each layer that it changes, where there are others than its own.
    """

    impl: str
    saved_us: float
    damage: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A choice for every layer, and what it saves together.

    Where two implementations change one layer, as its own inputs and its reader's do, their factors multiply.
    """

    choice: Choice
    saved_us: float


def sequence(
    options: Mapping[str, Sequence[Option]], dense_us: Mapping[str, float] = MappingProxyType({})
) -> list[Candidate]:
    """Plans from the one that damages nothing to the one that saves the most, each a step on one layer further.

    A step goes along the convex hull of a layer's options in the plane of damage and saved time; of all layers' next
    steps, the one with the largest saving for its damage is taken first, as in the greedy solution of the multiple
    choice knapsack problem (Sinha and Zoltners, Operations Research 27(3), 1979).

    Args:
        options: of each layer, without the dense one; those that save nothing are left out.
        dense_us: the step of each layer that an option's ``parts`` name.
    """
    current: dict[str, Option] = {}
    steps: list[tuple[float, int, str, Option]] = []
    for layer, offered in options.items():
        first, *more = _hull([Option("dense", 0.0, 0.0), *(one for one in offered if one.saved_us > 0)])
        if first.impl != "dense":
            current[layer] = first
        before = first
        for rank, option in enumerate(more):
            ratio = (option.saved_us - before.saved_us) / (option.damage - before.damage)
            steps.append((-ratio, rank, layer, option))
            before = option
    plans = [_candidate(current, dense_us)]
    for _, _, layer, option in sorted(steps, key=lambda step: step[:3]):
        current = current | {layer: option}
        plans.append(_candidate(current, dense_us))
    return plans


def _hull(options: Sequence[Option]) -> list[Option]:
    """Options by rising damage and saving, with falling gain for further damage."""
    best: list[Option] = []
    for option in sorted(options, key=lambda one: (one.damage, -one.saved_us)):
        if best and option.saved_us <= best[-1].saved_us:
            continue
        if best and option.damage == best[-1].damage:
            continue
        while len(best) > 1 and _gain(best[-2], best[-1]) <= _gain(best[-2], option):
            best.pop()
        best.append(option)
    return best


def _gain(before: Option, after: Option) -> float:
    return (after.saved_us - before.saved_us) / (after.damage - before.damage)


def _candidate(current: Mapping[str, Option], dense_us: Mapping[str, float]) -> Candidate:
    return Candidate({layer: option.impl for layer, option in current.items()}, _saved_us(current.values(), dense_us))


def _saved_us(options: Iterable[Option], dense_us: Mapping[str, float]) -> float:
    """What options of different layers save together, in microseconds."""
    saved, factors = 0.0, dict[str, float]()
    for one in options:
        saved += 0.0 if one.parts else one.saved_us
        for layer, factor in one.parts.items():
            factors[layer] = factors.get(layer, 1.0) * factor
    return saved + sum(dense_us[layer] * (1 - factor) for layer, factor in factors.items())


def furthest(count: int, accepted: Callable[[int], bool | None], last_first: bool = True) -> int:
    """The last of a sequence of plans that is accepted, found by bisection; 0 where none of the others is.

    Args:
        count: of plans; the first is accepted without a question.
        accepted: whether the plan of this index keeps the accuracy; ``None`` where there is no time left to find out.
        last_first: whether the last plan is asked for first, since it is often accepted.
    """
    low, high = 0, count
    probe = count - 1 if last_first else count // 2
    while low < high - 1:
        answer = accepted(probe)
        if answer is None:
            return low
        low, high = (probe, high) if answer else (low, probe)
        probe = (low + high) // 2
    return low


def spread(count: int, points: int) -> list[int]:
    """Up to ``points`` indices of a sequence at equal distances, its ends among them.

    >>> spread(9, 3)
    [0, 4, 8]
    """
    if count <= points:
        return list(range(count))
    return [round(index * (count - 1) / (points - 1)) for index in range(points)]
