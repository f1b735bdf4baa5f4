"""A search over keep ratios of all layers for the Pareto front of accuracy and latency.

Each layer is measured at each of its keep ratios with all other layers dense. A greedy search then lowers the keep
ratio of one layer at a time, the one that loses the least accuracy for the time it gains. Each combination on the way
is measured too, since losses do not add up. The front is the set of points that no other point dominates.

The search does not depend on models: accuracy and latency are functions of a choice. Each measurement is written to a
journal, a JSON file, before the next begins, so that a stopped search can resume.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.errors import UsageError

Choice = Mapping[str, float]
"""The keep ratio of each layer, by name."""

Measure = Callable[[Choice], float]

FORMAT = 1


@dataclass(frozen=True)
class Point:
    """Accuracy and latency of one choice."""

    choice: dict[str, float]
    accuracy: float
    latency: float

    def beats(self, other: Point) -> bool:
        """Whether it dominates the other: no worse in both, and better in one."""
        no_worse = self.accuracy >= other.accuracy and self.latency <= other.latency
        return no_worse and (self.accuracy, self.latency) != (other.accuracy, other.latency)


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other dominates, the fastest first; the first of equal ones."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.latency, -p.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return tuple(best)


def choose(
    points: Sequence[Point],
    dense: Point,
    *,
    max_accuracy_drop: float | None = None,
    target_speedup: float | None = None,
) -> Point:
    """A point of a front: with a target speedup the most accurate that reaches it, else the fastest within the budget.

    Args:
        points: a front.
        dense: the baseline of accuracy drops and speedups.
        max_accuracy_drop: in the unit of the accuracies.
        target_speedup: at least 1.

    Raises:
        UsageError: neither limit is given, the speedup is not positive, or no point is within them; the message lists
            the front.
    """
    if max_accuracy_drop is None and target_speedup is None:
        raise UsageError("expected max_accuracy_drop or target_speedup, got neither")
    if target_speedup is not None and not target_speedup > 0:
        raise UsageError(f"target_speedup: expected a number above 0, got {target_speedup}")
    lowest = -math.inf if max_accuracy_drop is None else dense.accuracy - max_accuracy_drop
    slowest = math.inf if target_speedup is None else dense.latency / target_speedup
    fit = [point for point in points if point.accuracy >= lowest and point.latency <= slowest]
    if not fit:
        drops = ", ".join(f"{dense.accuracy - p.accuracy:g} for {dense.latency / p.latency:.3g}x" for p in points)
        asked, advice = [], []
        if max_accuracy_drop is not None:
            asked.append(f"a drop of at most {max_accuracy_drop}")
            advice.append("raise the drop")
        if target_speedup is not None:
            asked.append(f"a speedup of at least {target_speedup}")
            advice.append("lower the target")
        raise UsageError(
            f"expected {' at '.join(asked)}; the front has drops of {drops or 'nothing'}: {', or '.join(advice)}"
        )
    if target_speedup is not None:
        return max(fit, key=lambda point: (point.accuracy, -point.latency))
    return min(fit, key=lambda point: (point.latency, -point.accuracy))


@dataclass
class Journal:
    """Measurements by choice, stored in a file.

    Raises:
        UsageError: the file is not a journal, or is of another search.
    """

    path: Path | None
    subject: Mapping[str, Any]
    """What measurements depend on besides the choice: model, data, device, seed. It identifies the search."""

    answers: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            self.answers = {key: {k: float(v) for k, v in entry.items()} for key, entry in document["answers"].items()}
            version, subject = document["format"], document["subject"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self.path}: expected a journal of a search, got {type(error).__name__}: {error}; "
                "name another file, or remove it to start again"
            ) from error
        if (version, subject) != (FORMAT, json.loads(json.dumps(self.subject))):
            raise UsageError(
                f"{self.path}: expected the journal of {dict(self.subject)}, got that of {subject} "
                f"in format {version}; name another file"
            )

    def measure(self, choice: Choice, accuracy: Measure, latency: Measure) -> Point:
        """The point of a choice. What is not in the journal is measured and written to it.

        Raises:
            UsageError: a measurement is not a finite number.
        """
        key = json.dumps(dict(sorted(choice.items())))
        entry = self.answers.setdefault(key, {})
        for name, function in (("accuracy", accuracy), ("latency", latency)):
            if name not in entry:
                answer = float(function(dict(choice)))
                if not math.isfinite(answer) or (name == "latency" and answer <= 0):
                    raise UsageError(f"{name} of {dict(choice)}: expected a number (a latency above 0), got {answer}")
                entry[name] = answer
                self._write()
        return Point(dict(choice), entry["accuracy"], entry["latency"])

    def _write(self) -> None:
        if self.path is None:
            return
        document = {"format": FORMAT, "subject": dict(self.subject), "answers": self.answers}
        # Replaced atomically, so that a kill leaves a complete journal.
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(fresh, self.path)


@dataclass(frozen=True)
class Search:
    """All measured points: the dense network, every other choice, and the front."""

    dense: Point
    points: tuple[Point, ...]
    front: tuple[Point, ...]


def search(
    layers: Mapping[str, Sequence[float]],
    accuracy: Measure,
    latency: Measure,
    *,
    journal: str | os.PathLike[str] | None = None,
    subject: Mapping[str, Any] | None = None,
    max_accuracy_drop: float = math.inf,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Search:
    """Search keep ratios of all layers along the front.

    Args:
        layers: the keep ratios of each layer, in (0, 1); 1, the dense layer, is always included.
        accuracy: returns that of a choice, which holds every layer.
        latency: returns that of a choice.
        journal: the file of measurements.
        subject: what they depend on besides the choice.
        max_accuracy_drop: the search stops beyond it.
        progress: is called before each choice with the number of choices so far, and the most that there can be.

    Raises:
        UsageError: a keep ratio is out of range, a measurement is not finite, or the journal is no path or of another
            search.
    """
    if not isinstance(journal, str | os.PathLike | None):
        raise UsageError(f"journal: expected a path, got {journal!r}")
    steps = {name: _sorted_ratios(name, ratios) for name, ratios in layers.items()}
    path = None if journal is None else Path(journal)
    book = Journal(path, {"layers": {name: list(ratios) for name, ratios in steps.items()}, **(subject or {})})
    base = dict.fromkeys(steps, 1.0)
    most, done = 1 + 2 * sum(map(len, steps.values())), itertools.count()

    def measure(choice: Choice) -> Point:
        progress(next(done), most)
        return book.measure(choice, accuracy, latency)

    dense = measure(base)
    alone = {name: [dense, *(measure(base | {name: ratio}) for ratio in ratios)] for name, ratios in steps.items()}
    points = [dense, *(point for row in alone.values() for point in row[1:])]
    at = dict.fromkeys(steps, 0)
    while moves := [name for name, ratios in steps.items() if at[name] < len(ratios)]:
        name = min(moves, key=lambda one: _price(alone[one][at[one]], alone[one][at[one] + 1]))
        at[name] += 1
        choice = {one: ([1.0, *steps[one]])[step] for one, step in at.items()}
        points.append(measure(choice))
        if dense.accuracy - points[-1].accuracy > max_accuracy_drop:
            break
    unique = list({json.dumps(point.choice): point for point in points}.values())
    return Search(dense, tuple(unique), front(unique))


def _sorted_ratios(name: str, ratios: Sequence[float]) -> list[float]:
    if any(not 0 < ratio < 1 for ratio in ratios):
        raise UsageError(f"{name}: expected keep ratios above 0 and below 1, got {list(ratios)}")
    return sorted(set(ratios), reverse=True)


def _price(before: Point, after: Point) -> tuple[float, float]:
    """Accuracy lost per time gained, 0 if none is lost; of equal prices the largest gain comes first.

    Steps that gain no time have an infinite price.
    """
    lost, gained = before.accuracy - after.accuracy, before.latency - after.latency
    return (max(lost, 0.0) / gained if gained > 0 else math.inf), -gained
