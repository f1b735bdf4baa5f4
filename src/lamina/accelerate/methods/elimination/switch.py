"""Models that switch between keep ratios at run time: each layer holds several variants, one of which is active."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from lamina.accelerate.methods.elimination.pareto import Choice
from lamina.errors import UsageError


class Switched(nn.Module):
    """Variants of one layer by keep ratio; `use` activates one.

    Variants share no weights, since each was recovered separately, so a switch copies nothing. CUDA graphs and compiled
    models keep the variant that was active when they were made.

    Args:
        variants: at least one layer, by keep ratio; the largest is active at first.

    Raises:
        UsageError: there is none.
    """

    def __init__(self, variants: Mapping[float, nn.Module]) -> None:
        super().__init__()
        if not variants:
            raise UsageError("variants: expected at least one layer, got none")
        self.keep_ratios = tuple(sorted(variants, reverse=True))
        self.variants = nn.ModuleList([variants[ratio] for ratio in self.keep_ratios])
        self.active = self.keep_ratios[0]

    def use(self, keep_ratio: float) -> None:
        """Activate the variant with this keep ratio.

        Raises:
            UsageError: there is no such variant.
        """
        if keep_ratio not in self.keep_ratios:
            known = ", ".join(map(str, self.keep_ratios))
            raise UsageError(f"expected one of the keep ratios {known}, got {keep_ratio}")
        self.active = keep_ratio

    def forward(self, *inputs: Any) -> Any:
        """The output of the active variant."""
        return self.variants[self.keep_ratios.index(self.active)](*inputs)

    def extra_repr(self) -> str:
        """The keep ratios, and the active one."""
        return f"keep_ratios={self.keep_ratios}, active={self.active}"


def switchable(model: nn.Module, variants: Mapping[str, Mapping[float, nn.Module]]) -> nn.Module:
    """Replace each named layer by its variants.

    Args:
        model: changed in place.
        variants: by layer name, as for `Switched`; a keep ratio of 1 is usually the dense layer.

    Raises:
        UsageError: the model has no layer of that name.
    """
    for name, layers in variants.items():
        parent, _, last = name.rpartition(".")
        if not name or name not in dict(model.named_modules()):
            raise UsageError(f"expected the names of layers inside the model, got {name!r}")
        setattr(model.get_submodule(parent), last, Switched(layers))
    return model


def use(model: nn.Module, choice: Choice) -> None:
    """Switch a model's layers to the keep ratios of a choice, by name: all of them, or none on an error.

    Raises:
        UsageError: a name is not of a switched layer, or a layer has no such variant.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Switched)}
    before = {name: layer.active for name, layer in layers.items()}
    try:
        for name, keep_ratio in choice.items():
            if name not in layers:
                raise UsageError(f"expected switched layers ({', '.join(layers) or 'none'}), got {name!r}")
            layers[name].use(keep_ratio)
    except UsageError:
        for name, keep_ratio in before.items():
            layers[name].use(keep_ratio)
        raise
