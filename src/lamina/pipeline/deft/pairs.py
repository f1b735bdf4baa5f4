"""Layers fine-tuned at each correlation threshold on their own, and networks composed of them.

Hill et al., DeftNN, MICRO 2017, section 4.1.3: each <layer, correlation threshold> pair is fine-tuned independently of
the others, so that any combination is a network at once, and a Pareto front of combinations is searched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from lamina.accelerate import convert
from lamina.accelerate.convert import put
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.pareto import Choice
from lamina.errors import UsageError

DENSE = 1.0
"""The threshold that prunes nothing."""


@dataclass
class Pairs:
    """Tuned layers of a dense network by name and threshold.

    Args:
        dense: the trained network, which is not changed.
        thresholds: the correlation thresholds of each layer, in (0, 1).
        tune: trains the parameters of a network that require gradients.
        config: how layers are pruned; ``alpha`` is set by the threshold.
    """

    dense: nn.Module
    thresholds: Mapping[str, Sequence[float]]
    tune: Callable[[nn.Module], object]
    config: Eliminated = field(default_factory=lambda: Eliminated(alpha=DENSE, impl="gather"))
    layers: dict[tuple[str, float], nn.Module] = field(default_factory=dict)

    def build(self) -> None:
        """Prune and fine-tune each pair, with all other layers dense and fixed.

        Raises:
            UsageError: a layer cannot be pruned.
        """
        for name, thresholds in self.thresholds.items():
            for alpha in thresholds:
                self.layers[name, alpha] = self._tuned(name, alpha)

    def network(self, choice: Choice) -> nn.Module:
        """The network with each layer at its threshold; layers at 1 are dense. It shares no parameters with others.

        Raises:
            UsageError: a pair was not built.
        """
        model = copy.deepcopy(self.dense)
        for name, alpha in choice.items():
            if alpha == DENSE:
                continue
            if (name, alpha) not in self.layers:
                known = sorted(own for layer, own in self.layers if layer == name)
                raise UsageError(f"layer {name!r} at {alpha:g}: expected one of the thresholds {known}")
            put(model, name, copy.deepcopy(self.layers[name, alpha]))
        return model.eval()

    def _tuned(self, name: str, alpha: float) -> nn.Module:
        config = Eliminated(alpha=alpha, recovery=self.config.recovery, align=self.config.align, impl=self.config.impl)
        model, record = convert(copy.deepcopy(self.dense), config, where=lambda path, _: path == name)
        if not record.replaced:
            reasons = [str(skipped.refusal) for skipped in record.skipped if skipped.layer == name]
            raise UsageError(f"layer {name!r} cannot be pruned: {', '.join(reasons) or 'no such layer'}")
        model.requires_grad_(False)
        layer = model.get_submodule(name)
        layer.requires_grad_(True)
        self.tune(model)
        return layer.requires_grad_(True)
