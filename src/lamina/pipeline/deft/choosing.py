"""The search over keep ratios, the choice of a point of its front, and weight formats for that point."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from lamina import measure
from lamina.accelerate.convert import standard
from lamina.accelerate.methods.elimination.network import Folded
from lamina.accelerate.methods.elimination.pareto import Point, Search, choose, search
from lamina.accelerate.stand_ins import restore
from lamina.errors import UsageError
from lamina.pipeline.deft.composition import Candidates, compose
from lamina.pipeline.deft.deployed import Deployment
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.deft.records import DeftConfig, worded
from lamina.pipeline.deft.weight_formats import Stored, rates_of, store_weights, suggest
from lamina.pipeline.watch import Stage, Watch

Composed = tuple[nn.Module, tuple[Folded, ...]]


@dataclass(frozen=True)
class Chooser:
    """The dense network, the variants of its layers, and the configuration; ``tuned`` collects fine-tuned points.

    Latencies of the search are relative to the dense network's, which is timed interleaved with each choice, so that
    other load on the machine slows both.
    """

    config: DeftConfig
    deployment: Deployment
    dense: nn.Module
    found: Candidates
    folding: bool
    watch: Watch
    tuned: list[Point] = field(default_factory=list)

    def compose(self, choice: Mapping[str, float]) -> Composed:
        """The network with the chosen variants."""
        return compose(self.dense, self.found.variants, choice, self.folding)

    def search(self, journal: Path, subject: Mapping[str, Any]) -> Search:
        """Search keep ratios of all layers along the front. Each evaluation is in the journal before the next begins.

        Raises:
            UsageError: the journal is of another search.
        """
        config, dense = self.config, self.deployment.deploy(self.dense)
        last: dict[str, nn.Module] = {}  # a choice is built once, for accuracy and latency

        def model(choice: Mapping[str, float]) -> nn.Module:
            key = describe(choice)
            if key not in last:
                last.clear()
                last[key] = self.deployment.deploy(self.compose(choice)[0])
            return last[key]

        def accuracy(choice: Mapping[str, float]) -> float:
            return self.deployment.calibrated(model(choice))

        def latency(choice: Mapping[str, float]) -> float:
            if all(ratio == 1 for ratio in choice.values()):
                return 1.0
            ratio = self.deployment.ratio(model(choice), dense)
            self.watch(f"{describe(choice)}: {1 / ratio:.2f}x")
            return ratio

        more: dict[str, Any] = {
            "folding": self.folding,
            "batch": config.batch,
            "precision": config.precision,
            "align": config.align,
            "recovery": config.recovery,
            "calibration": len(self.deployment.material.calibration),
        }
        more |= {"alphas": list(config.alphas)} if config.alphas else {}
        more |= {"objective": self.deployment.objective} if self.deployment.reference else {}
        return search(
            self.found.shares,
            accuracy,
            latency,
            journal=journal,
            subject={**subject, **more},
            max_accuracy_drop=float("inf") if config.tuning else config.max_accuracy_drop,
            progress=lambda done, most: self.watch(Stage("measuring choices of keep ratios", done, most)),
        )

    def choose(self, searched: Search, learner: Learner) -> tuple[Point, Composed]:
        """The point within the accuracy budget, as a network: the fastest, or with a target speedup the most accurate.

        Raises:
            UsageError: there is none.
        """
        config = self.config
        if config.tuning:
            return self._tuned(searched, learner)
        point = choose(
            searched.front,
            searched.dense,
            max_accuracy_drop=config.max_accuracy_drop,
            target_speedup=config.target_speedup,
        )
        return point, self.compose(point.choice)

    def _tuned(self, searched: Search, learner: Learner) -> tuple[Point, Composed]:
        """As `choose`, but over the whole front, since fine-tuning recovers accuracy.

        The accuracy of a point is known after its fine-tuning only. The fastest point is tuned first. If it exceeds the
        budget, a bisection looks for the fastest point within it, assuming that slower points are more accurate. With a
        target, only the most accurate point that reaches it is tuned.
        """
        config, target = self.config, self.config.target_speedup
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
            self.watch(f"tuning {describe(point.choice)}")
            learner.tune(composed[0], config.tuning)
            found = self.deployment.calibrated(self.deployment.deploy(composed[0]))
            self.watch(f"accuracy {found:.2f} %; at least {self.min_accuracy(searched):.2f} % is required")
            self.tuned.append(Point(point.choice, found, point.latency))
            if found >= self.min_accuracy(searched):
                best, high = (point, composed), tried
            else:
                low = tried + 1
            tried = (low + high) // 2
        if best is None and target:
            raise UsageError(
                f"expected a drop of at most {config.max_accuracy_drop:g} points at a speedup of at least "
                f"{target:g}, after {config.tuning} epochs of tuning; no network has that: "
                "raise the drop, lower the target, or tune for longer"
            )
        return best or (searched.dense, self.compose(searched.dense.choice))

    def min_accuracy(self, searched: Search) -> float:
        """The lowest accuracy within the budget, in percent."""
        return searched.dense.accuracy - self.config.max_accuracy_drop

    def store_weights(
        self, model: nn.Module, min_accuracy: float, cache: Path
    ) -> tuple[nn.Module, Mapping[str, Stored]]:  # fmt: skip
        """A copy with quantized weights, and the formats; the model itself if ``auto`` does not make it faster."""
        deployment, format = self.deployment, self.config.format
        result = standard(copy.deepcopy(model))
        formats = suggest(
            deployment.deploy(result),
            deployment.example(),
            format,
            lambda: rates_of(measure.roofs(deployment.device, cache), deployment.precision),
            deployment.precision,
        )
        steps = itertools.count()
        most = sum(stored.format is not None for stored in formats.values())

        def accuracy(one: nn.Module) -> float:
            self.watch(Stage("measuring weight formats", next(steps), most))
            return deployment.calibrated(deployment.deploy(one))

        formats = store_weights(result, formats, accuracy, min_accuracy, partial(worded, deployment.objective))
        if not any(stored.format for stored in formats.values()):
            return model, formats
        result = restore(result)
        if format != "auto":
            return result, formats
        before, after = deployment.interleaved(deployment.deploy(model), deployment.deploy(result))
        if after.median_us < before.median_us and not after.overlaps(before):
            return result, formats
        why = f"the network took {after.median_us:.3g} us, not less than {before.median_us:.3g} us"
        return model, {n: Stored(None, f"{s.format}: {why}", s.error) if s.format else s for n, s in formats.items()}


def describe(choice: Mapping[str, float]) -> str:
    """A choice as text: layers and keep ratios."""
    return ", ".join(f"{name} {ratio:g}" for name, ratio in choice.items() if ratio < 1) or "dense"
