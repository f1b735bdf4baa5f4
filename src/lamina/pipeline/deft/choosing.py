"""Which inputs and weight bits a network does without: a search, a choice of what it found, and formats after that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lamina import measure
from lamina.accelerate.methods.elimination.network import Folded
from lamina.accelerate.methods.elimination.pareto import Point, Search, choose, search
from lamina.errors import UsageError
from lamina.pipeline.deft.composition import Candidates, compose
from lamina.pipeline.deft.deployed import Place
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.deft.records import Asked
from lamina.pipeline.deft.weight_formats import Stored, rates_of, store_weights, suggest
from lamina.pipeline.watch import Watch

Composed = tuple[nn.Module, tuple[Folded, ...]]


@dataclass(frozen=True)
class Chooser:
    """What choosing needs to know: the dense network, the variants of its layers, and what was asked.

    Latencies of the search are in parts of the dense network's, which is timed by turns with each choice: what else
    goes on at a machine slows both.
    """

    asked: Asked
    place: Place
    dense: nn.Module
    found: Candidates
    folding: bool
    watch: Watch

    def compose(self, choice: Mapping[str, float]) -> Composed:
        """The network of a choice."""
        return compose(self.dense, self.found.variants, choice, self.folding)

    def search(self, journal: Path, subject: Mapping[str, Any]) -> Search:
        """Shares of all layers along the front; answers are in the journal before the next question.

        Raises:
            UsageError: the journal is another search's.
        """
        asked, dense = self.asked, self.place.deploy(self.dense)
        last: dict[str, nn.Module] = {}  # one choice is built once for both of its questions

        def model(choice: Mapping[str, float]) -> nn.Module:
            key = said(choice)
            if key not in last:
                last.clear()
                last[key] = self.place.deploy(self.compose(choice)[0])
            return last[key]

        def accuracy(choice: Mapping[str, float]) -> float:
            return self.place.calibrated(model(choice))

        def latency(choice: Mapping[str, float]) -> float:
            if all(share == 1 for share in choice.values()):
                return 1.0
            ratio = self.place.ratio(model(choice), dense)
            self.watch(f"{said(choice)}: {1 / ratio:.2f}x")
            return ratio

        more = {"folding": self.folding, "batch": asked.batch, "precision": asked.precision, "align": asked.align,
                "recovery": asked.recovery, "calibration": len(self.place.material.calibration)}  # fmt: skip
        return search(
            self.found.shares,
            accuracy,
            latency,
            journal=journal,
            subject={**subject, **more},
            max_accuracy_drop=float("inf") if asked.tuning else asked.max_accuracy_drop,
        )

    def choose(self, searched: Search, learner: Learner) -> tuple[Point, Composed]:
        """The point that does what was asked, as a network: the fastest, or with a target the most accurate.

        Raises:
            UsageError: none does.
        """
        asked = self.asked
        if asked.tuning:
            return self._tuned(searched, learner)
        point = choose(
            searched.front,
            searched.dense,
            max_accuracy_drop=asked.max_accuracy_drop,
            target_speedup=asked.target_speedup,
        )
        return point, self.compose(point.choice)

    def _tuned(self, searched: Search, learner: Learner) -> tuple[Point, Composed]:
        """As `choose`, but of the whole front, however much it loses: tuning gives accuracy back.

        What a point has after tuning is known when it is tuned: the fastest first, and if that loses more than allowed,
        the fastest that does not is sought by halving, as if what is slower were the more accurate, as it is before.
        With a target the one is tuned that is the most accurate before.
        """
        asked, target = self.asked, self.asked.target_speedup
        points = [
            p for p in searched.front
            if p.choice != searched.dense.choice and p.latency * (target or 1) <= searched.dense.latency
        ]  # fmt: skip
        if target:
            points = points[-1:]
        best: tuple[Point, Composed] | None = None
        low, tried, high = 0, 0, len(points)
        while low < high:
            point = points[tried]
            composed = self.compose(point.choice)
            self.watch(f"tuning {said(point.choice)}")
            learner.tune(composed[0], asked.tuning)
            found = self.place.calibrated(self.place.deploy(composed[0]))
            self.watch(f"accuracy {found:.2f} %, of which {self.least(searched):.2f} % must remain")
            if found >= self.least(searched):
                best, high = (point, composed), tried
            else:
                low = tried + 1
            tried = (low + high) // 2
        if best is None and target:
            raise UsageError(
                f"expected a drop of at most {asked.max_accuracy_drop:g} points at a speed-up of at least "
                f"{target:g}, tuned for {asked.tuning} epochs; nothing found does: "
                "allow more, ask for less, or tune for longer"
            )
        return best or (searched.dense, self.compose(searched.dense.choice))

    def least(self, searched: Search) -> float:
        """The accuracy that must remain, in percent."""
        return searched.dense.accuracy - self.asked.max_accuracy_drop

    def store_weights(self, model: nn.Module, least: float, cache: Path) -> Mapping[str, Stored]:
        """Put formats into the model; taken back, where they were not asked for by name and are no faster."""
        place, wanted = self.place, self.asked.format
        formats = suggest(
            place.deploy(model),
            place.example(),
            wanted,
            lambda: rates_of(measure.roofs(place.device, cache), place.precision),
            place.precision,
        )
        if not any(stored.format for stored in formats.values()):
            return formats
        plain, layers = place.deploy(model), {name: model.get_submodule(name) for name in formats}
        formats = store_weights(model, formats, lambda one: place.calibrated(place.deploy(one)), least)
        if wanted != "auto" or not any(stored.format for stored in formats.values()):
            return formats
        before, after = place.by_turns(plain, place.deploy(model))
        if after.median_us < before.median_us and not after.overlaps(before):
            return formats
        for name, layer in layers.items():
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer)
        told = f"together measured {after.median_us:.3g} us, not below {before.median_us:.3g} us"
        return {n: Stored(None, f"{s.format}: {told}", s.error) if s.format else s for n, s in formats.items()}


def said(choice: Mapping[str, float]) -> str:
    """A choice in words."""
    return ", ".join(f"{name} {share:g}" for name, share in choice.items() if share < 1) or "dense"
