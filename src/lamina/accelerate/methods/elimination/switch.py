"""A running model that changes between configurations: every layer holds its variants, and one of them computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from lamina.accelerate.methods.elimination.pareto import Choice
from lamina.errors import UsageError


class Switched(nn.Module):
    """Variants of one layer by the share of vectors that each keeps; `use` says which one computes.

    They share nothing, since each has recovered in its own way, so a switch copies no weights. A graph that was
    captured or compiled before keeps the variant of that time.

    Args:
        variants: at least one layer; the one that keeps the most computes at first.

    Raises:
        UsageError: there is none.
    """

    def __init__(self, variants: Mapping[float, nn.Module]) -> None:
        super().__init__()
        if not variants:
            raise UsageError("variants: expected at least one layer, got none")
        self.shares = tuple(sorted(variants, reverse=True))
        self.variants = nn.ModuleList([variants[share] for share in self.shares])
        self.active = self.shares[0]

    def use(self, share: float) -> None:
        """Let the variant compute that keeps this share.

        Raises:
            UsageError: there is no such variant.
        """
        if share not in self.shares:
            raise UsageError(f"expected one of the shares {', '.join(map(str, self.shares))}, got {share}")
        self.active = share

    def forward(self, *inputs: Any) -> Any:
        """As the active variant does."""
        return self.variants[self.shares.index(self.active)](*inputs)

    def extra_repr(self) -> str:
        """The shares there are, and the active one."""
        return f"shares={self.shares}, active={self.active}"


def switchable(model: nn.Module, variants: Mapping[str, Mapping[float, nn.Module]]) -> nn.Module:
    """Put the variants of each named layer in its place, in the model.

    Args:
        model: changed in place.
        variants: for each layer's name its variants, as `Switched` takes them; 1 is usually the dense layer itself.

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
    """Switch a model's layers to the shares of a choice, by name; all or, if one cannot, none.

    Raises:
        UsageError: a name is of no switched layer, or one has no such variant.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Switched)}
    before = {name: layer.active for name, layer in layers.items()}
    try:
        for name, share in choice.items():
            if name not in layers:
                raise UsageError(f"expected switched layers ({', '.join(layers) or 'none'}), got {name!r}")
            layers[name].use(share)
    except UsageError:
        for name, share in before.items():
            layers[name].use(share)
        raise
