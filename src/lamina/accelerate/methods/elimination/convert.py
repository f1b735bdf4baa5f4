"""Conversion to layers with pruned input channels."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.elimination import reference, search
from lamina.accelerate.methods.elimination.config import Eliminated
from lamina.accelerate.methods.elimination.nn import (
    EliminatedConv1d,
    EliminatedConv2d,
    EliminatedLinear,
    EliminatedLSTM,
)
from lamina.accelerate.methods.elimination.table import tap_prefixes
from lamina.errors import UnsupportedError, UsageError

ELIMINATED: dict[type[nn.Module], Any] = {
    nn.Linear: EliminatedLinear,
    nn.Conv1d: EliminatedConv1d,
    nn.Conv2d: EliminatedConv2d,
    nn.LSTM: EliminatedLSTM,
}
"""The replacement of each dense layer."""

FITTED = ("bias", "least_squares")
"""Recoveries that need calibration data."""


def unfitted(config: Any) -> Any:
    """The configuration of any method without a recovery that needs calibration data: ``scale`` in its place."""
    fitted = isinstance(config, Eliminated) and config.recovery in FITTED
    return dataclasses.replace(config, recovery="scale") if fitted else config


def refusal(module: nn.Module) -> str | None:
    """Why a layer's input channels cannot be pruned, or nothing."""
    kind = type(module).__name__
    if type(module) not in ELIMINATED:
        if next(module.parameters(recurse=False), None) is None:
            return f"{kind} has no weights"
        return f"{kind} is none of Linear, Conv1d, Conv2d, LSTM"
    if isinstance(module, nn.LSTM):
        return None
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    if weight is None:
        return "its weight is computed by a hook, such as that of torch.nn.utils.weight_norm"
    if getattr(module, "groups", 1) > 1:
        return f"it has {module.groups} groups, none of which reads all input channels"
    outputs, inputs = weight.shape[:2]
    if not outputs or not inputs:
        return f"it has zero {'outputs' if inputs else 'inputs'}"
    if isinstance(module, nn.Linear) and outputs < 2:
        return "it has one output: synapse vectors of one weight have no correlation"
    return None


def replace(module: nn.Module, config: Eliminated) -> nn.Module:
    """A layer without the input channels that the search prunes, in place of a dense one.

    Raises:
        UnsupportedError: the layer is refused, or the configuration does not fit it.
        UsageError: its weights are not finite, or the recovery needs calibration data.
    """
    if config.recovery in FITTED:
        raise UsageError(
            f"recovery {config.recovery!r} needs calibration data: convert with "
            "lamina.accelerate.methods.elimination.recovery.eliminate(model, config, batches), or use recovery='scale'"
        )
    index = choose(module, config)
    total = inputs_of(module, config)
    return build(module, index, config, factor=factor(config, total, len(index)))


def factor(config: Eliminated, total: int, kept: int) -> float:
    """What the weights of kept inputs are multiplied by, without calibration data."""
    return {"scale": total / kept, "variance": math.sqrt(total / kept)}.get(config.recovery, 1.0)


def build(module: nn.Module, index: Tensor, config: Eliminated, factor: float = 1.0) -> nn.Module:
    """The layer with the inputs ``index`` only and its weights times ``factor``.

    Raises:
        UnsupportedError: the layer is refused, or the configuration does not fit it.
    """
    if reason := refusal(module):
        raise UnsupportedError(reason)
    kind = ELIMINATED[type(module)]
    if isinstance(module, nn.LSTM):
        if config.impl not in ("auto", "gather"):
            raise UnsupportedError(
                f"an LSTM has no impl={config.impl!r}: the library's recurrence takes no index table"
            )
        layer: nn.Module = kind.from_dense(module, index, factor=factor, impl=config.impl)
    elif isinstance(module, nn.Linear):
        layer = kind.from_dense(module, index, factor=factor, impl=config.impl)
    else:
        layer = kind.from_dense(module, index, by=config.by, factor=factor, impl=config.impl)
    return layer


def choose(module: nn.Module, config: Eliminated) -> Tensor:
    """The inputs to keep, in the order of the new layer's columns.

    Raises:
        UnsupportedError: the layer is refused, or the configuration does not fit it.
        UsageError: its weights are not finite.
    """
    return retained(module, config)[0]


def retained(
    module: nn.Module, config: Eliminated, correlations: Tensor | None = None
) -> tuple[Tensor, search.Retention | None]:
    """As `choose`, with the result of the search; None if the keep ratio is 1 and nothing was searched.

    ``correlations`` are those of the layer's vectors, from `correlations_of`, for several searches of one layer.
    """
    if reason := refusal(module):
        raise UnsupportedError(reason)
    weight, taps = _weight(module), _taps(module, config)
    total = inputs_of(module, config)
    if config.keep == 1.0:
        return torch.arange(total, device=weight.device), None
    if config.select == "even":
        return _ordered(_even(module, config), total, taps, config), None
    vectors = _vectors(module, config)
    if vectors.shape[1] < 2:
        raise UnsupportedError("synapse vectors of one weight have no correlation; use by='channel', or a larger group")
    vector_index, found = search.select(
        vectors, keep=config.keep, alpha=config.alpha, align=-(-config.align // config.group), correlations=correlations
    )
    index = search.spread(vector_index, config.group, taps)
    return _ordered(index, total, taps, config), found


def _even(module: nn.Module, config: Eliminated) -> Tensor:
    """Inputs of vectors at equal distances. A search takes a minute in a layer of 25,000 inputs."""
    taps, total = _taps(module, config), inputs_of(module, config)
    if total % (config.group * taps):
        raise UnsupportedError(f"group {config.group} does not divide its {total // taps} inputs")
    vectors = total // config.group
    number = search.aligned((config.keep or 1.0) * vectors, vectors, -(-config.align // config.group))
    places = torch.arange(number, device=_weight(module).device) * vectors // number
    return search.spread(places, config.group, taps)


def _ordered(index: Tensor, total: int, taps: int, config: Eliminated) -> Tensor:
    """The sorted index of kept inputs in the order of the new layer's columns."""
    if len(index) == total:
        return index
    if config.order == "swap":
        return index.new_tensor(reference.swap_order(index.tolist(), total))
    if config.order == "prefix" and taps > 1:
        return index.new_tensor(tap_prefixes(index.tolist(), total // taps, taps, config.align).index())
    return index[torch.argsort(index % taps, stable=True)]


def correlations_of(module: nn.Module, config: Eliminated) -> Tensor | None:
    """The correlations of a layer's synapse vectors; None if they have one weight each."""
    vectors = _vectors(module, config)
    return search.correlation(vectors) if vectors.shape[1] > 1 else None


def _vectors(module: nn.Module, config: Eliminated) -> Tensor:
    by = config.by if isinstance(module, nn.Conv1d | nn.Conv2d) else "channel"
    return search.synapse_vectors(_weight(module), by, config.group)


def inputs_of(module: nn.Module, config: Eliminated) -> int:
    """The number of a layer's inputs: channels, or channels times taps where the configuration prunes by tap."""
    return int(_weight(module).shape[1]) * _taps(module, config)


def _weight(module: nn.Module) -> Tensor:
    """``(out, in, *kernel)``. Both directions of an LSTM read the same features, so their gates are concatenated."""
    if not isinstance(module, nn.LSTM):
        return module.get_parameter("weight").detach()
    names = ["weight_ih_l0", "weight_ih_l0_reverse"][: 2 if module.bidirectional else 1]
    return torch.cat([module.get_parameter(name).detach() for name in names])


def _taps(module: nn.Module, config: Eliminated) -> int:
    """Taps of one channel that are pruned one by one. Sorting by tap puts neighbouring channels of a tap together."""
    by_tap = config.by == "tap" and isinstance(module, nn.Conv1d | nn.Conv2d)
    return _weight(module)[0, 0].numel() if by_tap else 1
