"""A network composed of a choice: each layer with the share of its inputs that it keeps, producers folded."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lamina import measure
from lamina.accelerate.convert import put, standard_twin
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.convert import (
    FITTED,
    build,
    correlations_of,
    factor,
    inputs_of,
    refusal,
    retained,
)
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.methods.elimination.network import Folded, fold
from lamina.accelerate.methods.elimination.nn import EliminatedLinear
from lamina.accelerate.methods.elimination.recovery import Moments, observe, recover
from lamina.accelerate.methods.elimination.search import aligned, spread
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.watch import Watch, tracked, unwatched
from lamina.spec.layer_names import matching_layers

TEMPORARIES = 3
"""Further matrices of the size of a layer's products of inputs while it is observed and searched."""


@dataclass(frozen=True)
class Variant:
    """One layer at one share: recovered, with what its search found.

    ``alpha`` is the correlation from which on one vector represents another; there is none where the inputs that
    contribute the most are kept instead, because the outputs lose less. ``error`` is the root mean square of what the
    outputs lost, in parts of that of the outputs, over the calibration inputs.
    """

    layer: nn.Module
    kept: int
    total: int
    alpha: float | None
    error: float | None


Variants = Mapping[str, Mapping[float, Variant]]
"""By the layer's name and the share that was asked for."""


@dataclass(frozen=True)
class Candidates:
    """The variants of each layer that has any, and why each other layer with weights has none."""

    variants: Variants
    refusals: Mapping[str, str]

    @property
    def shares(self) -> dict[str, list[float]]:
        """What a search may choose from."""
        return {name: list(row) for name, row in self.variants.items()}


def candidates(
    model: nn.Module,
    config: Eliminated,
    ratios: Sequence[float],
    batches: Iterable[Any],
    groups: Mapping[str, int] | None = None,
    *,
    alphas: Sequence[float] = (),
    patterns: Sequence[str] = (),
    watch: Watch = unwatched,
) -> Candidates:
    """Every layer at every keep ratio, recovered from what the model's layers see in the calibration batches.

    Args:
        model: in evaluation mode; not changed.
        config: what all variants have in common; its keep ratio is not used.
        ratios: keep ratios, each above 0 and below 1.
        batches: inputs of the model.
        groups: how many neighbouring inputs of a layer are kept or pruned together, where it is not one.
        alphas: correlation thresholds, each of which gives a layer one more keep ratio.
        patterns: of the names of layers to prune; all by default.
        watch: receives the progress.

    Raises:
        UsageError: no layer has inputs to prune, a pattern matches no layer, or the batches hold nothing finite.
    """
    model = standard_twin(model)
    layers, refusals = _layers(model, patterns)
    _leave_out_too_large(layers, refusals)
    moments = observe(model, layers, batches) if layers else {}
    found: dict[str, dict[float, Variant]] = {}
    for name, layer in tracked("searching synapse vectors to keep", layers.items(), len(layers), watch):
        if name not in moments:
            refusals[name] = "the calibration batches did not reach it"
            continue
        try:
            grouped = replace(config, group=(groups or {}).get(name, 1))
            row = _variants(layer, grouped, ratios, alphas, moments.pop(name))
        except UnsupportedError as error:
            refusals[name] = str(error)
            continue
        if row:
            found[name] = row
        else:
            refusals[name] = "no keep ratio prunes any of its inputs"
    if not found:
        raise _nothing(refusals)
    return Candidates(found, refusals)


def _leave_out_too_large(layers: dict[str, nn.Module], refusals: dict[str, str]) -> None:
    """Refuse the largest layers until the products of every two inputs (float64) of the others fit into memory."""
    inputs = {name: inputs_of(layer, Eliminated(by="tap")) for name, layer in layers.items()}
    for name in sorted(layers, key=lambda one: -inputs[one]):
        free = measure.free_bytes(next(layers[name].parameters()).device)
        need = 8 * (sum(inputs[one] ** 2 for one in layers) + TEMPORARIES * inputs[name] ** 2)
        if free is None or need <= free:
            return
        del layers[name]
        refusals[name] = (
            f"products of its {inputs[name]:,} inputs, with those of smaller layers, need {need / 2**30:.3g} GiB of "
            f"memory, and {free / 2**30:.3g} GiB are free"
        )


def require_prunable(model: nn.Module, patterns: Sequence[str] = ()) -> None:
    """Check that a layer can be pruned, which needs no calibration data.

    Raises:
        UsageError: no layer has inputs to prune, or a pattern matches no layer.
    """
    layers, refusals = _layers(standard_twin(model), patterns)
    if not layers:
        raise _nothing(refusals)


def _nothing(refusals: Mapping[str, str]) -> UsageError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items()) or "no layer has weights"
    return UsageError(f"expected a network with a layer whose inputs can be pruned, got none: {reasons}")


def _weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers with weights, by name."""
    leaves = {name: module for name, module in model.named_modules() if name and not list(module.children())}
    return {name: module for name, module in leaves.items() if list(module.parameters(recurse=False))}


def _layers(model: nn.Module, patterns: Sequence[str] = ()) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layers to prune, and why each other layer with weights is not."""
    leaves = _weighted_layers(model)
    owners = Counter(id(parameter) for module in leaves.values() for parameter in module.parameters(recurse=False))
    layers: dict[str, nn.Module] = {}
    refusals: dict[str, str] = {}
    wanted = set(matching_layers(patterns, leaves))
    for name, module in leaves.items():
        parameters = list(module.parameters(recurse=False))
        reason = refusal(module) if name in wanted else "it was not selected"
        if reason is None and any(owners[id(parameter)] > 1 for parameter in parameters):
            reason = "its weights are shared with another layer"
        if reason is None and inputs_of(module, Eliminated()) < 2:
            reason = "it has one input"
        if reason is None:
            layers[name] = module
        else:
            refusals[name] = reason
    return layers, refusals


def _variants(
    dense: nn.Module, config: Eliminated, ratios: Sequence[float], alphas: Sequence[float], moments: Moments
) -> dict[float, Variant]:
    """The variants of a layer by keep ratio, in falling order; those of a threshold by the ratio that it leads to."""
    correlations = correlations_of(dense, config)
    row: dict[float, Variant] = {}
    for ratio in sorted(set(ratios), reverse=True):
        one = _variant(dense, replace(config, keep=ratio, alpha=None), moments, correlations)
        if one.kept < one.total and one.kept not in {other.kept for other in row.values()}:
            row[ratio] = one
    for alpha in alphas:
        by_threshold = replace(config, keep=None, alpha=alpha)
        index, _ = retained(dense, by_threshold, correlations)
        one = _recovered(dense, index, by_threshold, moments, alpha)
        if one.kept < one.total and one.kept not in {other.kept for other in row.values()}:
            row[one.kept / one.total] = one
    return dict(sorted(row.items(), reverse=True))


def _variant(dense: nn.Module, config: Eliminated, moments: Moments, correlations: Tensor | None) -> Variant:
    index, found = retained(dense, config, correlations)
    first = _recovered(dense, index, config, moments, found.alpha if found else None)
    if isinstance(dense, nn.LSTM) or first.error is None:
        return first
    second = _recovered(dense, by_contribution(dense, config, moments), config, moments, None)
    return second if second.error is not None and second.error < first.error else first


def _recovered(dense: nn.Module, index: Tensor, asked: Eliminated, moments: Moments, alpha: float | None) -> Variant:
    total = inputs_of(dense, asked)
    layer = build(dense, index, asked, factor=factor(asked, total, len(index)))
    if asked.recovery in FITTED:
        recover(layer, dense, moments, asked)
    return Variant(layer, len(index), total, alpha, output_error(dense, layer, moments))


def by_contribution(dense: nn.Module, asked: Eliminated, moments: Moments) -> Tensor:
    """The inputs that contribute the most to a layer's outputs over what was observed, in rising order.

    That of an input is its mean square times that of its weights. Correlations know neither: they tell vectors that are
    alike, whatever their length and however often their input is zero.
    """
    weight = dense.get_parameter("weight").detach().double()
    square = (moments.products.diagonal() / moments.count) * weight.flatten(1).square().sum(0)
    vectors = square.reshape(weight.shape[1] // asked.group, -1).sum(1)
    number = aligned((asked.keep or 1.0) * len(vectors), len(vectors), -(-asked.align // asked.group))
    places = torch.argsort(vectors, descending=True, stable=True)[:number].sort().values
    return spread(places, asked.group)


@torch.no_grad()
def output_error(dense: nn.Module, layer: nn.Module, moments: Moments) -> float | None:
    """The root mean square of the outputs' difference, in parts of that of the dense ones; ``None`` of an LSTM.

    With ``D`` the difference of weights and ``d`` of biases, the mean of ``|D x + d|^2`` over the observed inputs is
    ``tr(D S D^T) + 2 d D m + |d|^2`` by the second moments ``S`` and the mean ``m`` of the inputs. The terms cancel
    where a layer is almost the dense one: a sum that float64 does not resolve counts as 0, so errors of about 1e-6
    and less are 0.
    """
    if isinstance(dense, nn.LSTM):
        return None
    twin = cast(Any, layer).to_dense() if isinstance(layer, Indexed) else layer
    weights = [module.get_parameter("weight").double().flatten(1) for module in (dense, twin)]
    biases = [
        weights[0].new_zeros(len(weights[0])) if module.bias is None else cast(Tensor, module.bias).double()
        for module in (dense, twin)
    ]
    lost = _square(weights[0] - weights[1], biases[0] - biases[1], moments)
    whole = _square(weights[0], biases[0], moments)
    return (lost / whole) ** 0.5 if whole > 0 else 0.0


def _square(weight: Tensor, bias: Tensor, moments: Moments) -> float:
    """The mean of ``|W x + b|^2`` over the observed inputs, or 0 where that is below its rounding error.

    ``n`` rounded operations err by about ``sqrt(n) eps`` times the sum of the absolute terms (Higham and Mary,
    A new approach to probabilistic rounding error analysis, 2019, theorem 3.1).
    """
    second, mean = moments.second, moments.mean
    square = ((weight @ second) * weight).sum() + 2 * bias @ (weight @ mean) + bias @ bias
    scale = second.diagonal().clamp(min=0).sqrt()  # |S| <= outer(scale, scale), and |m| <= scale
    terms = (weight.abs() @ scale + bias.abs()).square().sum()
    operations = moments.count + 2 * weight.shape[1] + weight.shape[0]
    resolution = operations**0.5 * torch.finfo(torch.float64).eps * float(terms)
    return float(square) if square > resolution else 0.0


def foldable(model: nn.Module) -> str | None:
    """Why producers cannot be folded, or nothing."""
    try:
        fold(copy.deepcopy(model))
    except UsageError as error:
        return str(error)
    return None


def flattened(model: nn.Module) -> dict[str, int]:
    """How many neighbouring inputs of each linear layer are the pixels of one channel.

    Where they go together their producer need not compute the channel, and what is left is a plain layer.

    Args:
        model: one that can be folded; not changed.
    """
    probe = copy.deepcopy(model)
    inputs = {name: layer.in_features for name, layer in probe.named_modules() if name and type(layer) is nn.Linear}
    for name, number in inputs.items():
        parent, _, last = name.rpartition(".")
        # Reading the last input alone, each lets its producer say how many channels it has.
        layer = EliminatedLinear.from_dense(cast(nn.Linear, probe.get_submodule(name)), [number - 1])
        setattr(probe.get_submodule(parent), last, layer)
    _, changed = fold(probe)
    pixels = {name: inputs[name] // one.outputs for one in changed for name in one.consumers if name in inputs}
    return {name: number for name, number in pixels.items() if number > 1}


def compose(
    model: nn.Module, variants: Variants, choice: Mapping[str, float], folding: bool = True
) -> tuple[nn.Module, tuple[Folded, ...]]:
    """A copy of the model with the chosen variants in their places, and the producers that folding narrowed.

    Args:
        model: the dense network.
        variants: as `candidates` made them.
        choice: the share of each layer; 1 leaves it dense.
        folding: whether producers compute only what is read.
    """
    result = copy.deepcopy(model)
    for name, share in choice.items():
        if share < 1:
            put(result, name, copy.deepcopy(variants[name][share].layer))
    return fold(result) if folding else (result, ())
