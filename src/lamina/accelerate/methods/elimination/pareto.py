"""Several thresholds for each layer, composed along a front of accuracy against latency.

Each layer is measured at each of its thresholds with the others dense. By what that costs and gains, one step after
another is taken, the cheapest first: from a layer's threshold to its next. Every composition on the way is measured
too, for costs do not simply add up, and what is no worse than any other on both counts is the front.

Nothing here knows what a model is: accuracy and latency are functions of a choice. Each answer goes into a journal, a
plain JSON file, before the next question; whoever starts again asks only what is not in it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.errors import UsageError

Choice = Mapping[str, float]
"""The share of vectors that each layer keeps, by its name."""

Measure = Callable[[Choice], float]

FORMAT = 1


@dataclass(frozen=True)
class Point:
    """What one choice gives: accuracy, the more the better, and latency, the less the better."""

    choice: dict[str, float]
    accuracy: float
    latency: float

    def beats(self, other: Point) -> bool:
        """Whether it is no worse in both, and better in one."""
        no_worse = self.accuracy >= other.accuracy and self.latency <= other.latency
        return no_worse and (self.accuracy, self.latency) != (other.accuracy, other.latency)


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Those that none beats, the fastest first; of equals the first."""
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
    """The point of a front that does what was asked.

    With a target the most accurate that is fast enough; else the fastest that loses no more than allowed.

    Args:
        points: a front.
        dense: what drops and speed-ups are counted from.
        max_accuracy_drop: in the unit of the accuracies.
        target_speedup: at least 1.

    Raises:
        UsageError: nothing was asked, or no point does it; the message names the nearest.
    """
    if max_accuracy_drop is None and target_speedup is None:
        raise UsageError("expected a largest accuracy drop or a target speed-up, got neither")
    lowest = -math.inf if max_accuracy_drop is None else dense.accuracy - max_accuracy_drop
    slowest = math.inf if target_speedup is None else dense.latency / target_speedup
    fit = [point for point in points if point.accuracy >= lowest and point.latency <= slowest]
    if not fit:
        told = ", ".join(f"{dense.accuracy - p.accuracy:g} for {dense.latency / p.latency:.3g}x" for p in points)
        raise UsageError(
            f"expected a drop of at most {max_accuracy_drop} at a speedup of at least {target_speedup}; "
            f"the front has drops of {told or 'nothing'}: allow more, or ask for less"
        )
    if target_speedup is not None:
        return max(fit, key=lambda point: (point.accuracy, -point.latency))
    return min(fit, key=lambda point: (point.latency, -point.accuracy))


@dataclass
class Journal:
    """Answers by what was asked, kept in a file.

    Raises:
        UsageError: the file is no journal, or one of another search.
    """

    path: Path | None
    subject: Mapping[str, Any]
    """What the answers depend on besides a choice: model, data, device, seed. Another subject is another search."""

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

    def ask(self, choice: Choice, accuracy: Measure, latency: Measure) -> Point:
        """What is known of a choice; what is not is measured and written down at once.

        Raises:
            UsageError: an answer is no number.
        """
        key = json.dumps(dict(sorted(choice.items())))
        entry = self.answers.setdefault(key, {})
        for name, measure in (("accuracy", accuracy), ("latency", latency)):
            if name not in entry:
                answer = float(measure(dict(choice)))
                if not math.isfinite(answer) or (name == "latency" and answer <= 0):
                    raise UsageError(f"{name} of {dict(choice)}: expected a number (a latency above 0), got {answer}")
                entry[name] = answer
                self._write()
        return Point(dict(choice), entry["accuracy"], entry["latency"])

    def _write(self) -> None:
        if self.path is None:
            return
        document = {"format": FORMAT, "subject": dict(self.subject), "answers": self.answers}
        # Beside it and then in its place, so that a kill leaves a whole journal.
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(fresh, self.path)


@dataclass(frozen=True)
class Search:
    """All that was measured: the dense network, every other choice, and the front of them all."""

    dense: Point
    points: tuple[Point, ...]
    front: tuple[Point, ...]


def search(
    layers: Mapping[str, Sequence[float]],
    accuracy: Measure,
    latency: Measure,
    *,
    journal: Path | None = None,
    subject: Mapping[str, Any] | None = None,
    max_accuracy_drop: float = math.inf,
) -> Search:
    """Compose thresholds of layers along the front.

    Args:
        layers: for each the shares to keep besides 1, which is the dense layer; each above 0 and below 1.
        accuracy: of a choice, which names every layer.
        latency: of a choice.
        journal: where answers are kept.
        subject: what they depend on besides the choice.
        max_accuracy_drop: beyond which no composition is carried further.

    Raises:
        UsageError: a share is out of range, an answer is no number, or the journal is another search's.
    """
    steps = {name: _shares(name, shares) for name, shares in layers.items()}
    asked = {"layers": {name: list(shares) for name, shares in steps.items()}, **(subject or {})}
    book = Journal(journal, asked)
    base = dict.fromkeys(steps, 1.0)
    dense = book.ask(base, accuracy, latency)
    alone = {
        name: [dense, *(book.ask(base | {name: share}, accuracy, latency) for share in shares)]
        for name, shares in steps.items()
    }
    points = [dense, *(point for row in alone.values() for point in row[1:])]
    at = dict.fromkeys(steps, 0)
    while moves := [name for name, shares in steps.items() if at[name] < len(shares)]:
        name = min(moves, key=lambda one: _price(alone[one][at[one]], alone[one][at[one] + 1]))
        at[name] += 1
        choice = {one: ([1.0, *steps[one]])[place] for one, place in at.items()}
        points.append(book.ask(choice, accuracy, latency))
        if dense.accuracy - points[-1].accuracy > max_accuracy_drop:
            break
    unique = list({json.dumps(point.choice): point for point in points}.values())
    return Search(dense, tuple(unique), front(unique))


def _shares(name: str, shares: Sequence[float]) -> list[float]:
    if any(not 0 < share < 1 for share in shares):
        raise UsageError(f"{name}: expected shares above 0 and below 1, got {list(shares)}")
    return sorted(set(shares), reverse=True)


def _price(before: Point, after: Point) -> tuple[float, float]:
    """Accuracy lost for each unit of time gained; what loses none is free, and the most gained comes first.

    Steps that gain no time come last, dearest of all.
    """
    lost, gained = before.accuracy - after.accuracy, before.latency - after.latency
    return (max(lost, 0.0) / gained if gained > 0 else math.inf), -gained
