"""What is tried on the layers of a network: each method on each unit of layers that it replaces together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lamina import accelerate
from lamina.accelerate.convert import units_of
from lamina.accelerate.select import DENSE
from lamina.pipeline.study.algorithms import convolutions
from lamina.pipeline.study.config import StudyConfig
from lamina.record.study import Settings, Trial
from lamina.spec import Method
from lamina.spec.layer_names import matching_layers

HOPELESS = 1.25
"""Time over the dense layer's from which on no further variant of a method is tried."""

SPARSE_BELOW = {"fp32": 0.6, "tf32": 0.3, "bf16": 0.2, "fp16": 0.2}
"""Density of inputs above which no sparse product is tried on a GPU: `benchmarks.sparse_gemm` has what pays."""

Ratios = dict[tuple[str, str], float]
"""By layer and name of a method, the time of the last variant that ran over the dense layer's."""


@dataclass(frozen=True)
class Attempt:
    """A method on the layers that it replaces together.

    Attributes:
        method: with its options.
        names: of the layers, in the order in which they run.
        module: what is replaced: a layer, or a sequence of them.
        refusal: why it is not tried.
        stays: as in `accelerate.convert.Unit`.
        rank: counts the variants of a method, such as its keep ratios. The first of every method is tried on all layers
            before the second of any, so that little time reaches every layer.
    """

    method: Method
    names: tuple[str, ...]
    module: nn.Module
    refusal: str | None
    stays: nn.Module | None
    rank: int = 0

    def __str__(self) -> str:
        """As messages and the journal name it: ``conv1, circulant[block_size=64]``."""
        return f"{self.layer}, {self.method}"

    @property
    def layer(self) -> str:
        """The first of the layers, by which trials name all of them."""
        return self.names[0]

    @property
    def several(self) -> bool:
        """Whether it computes more than one layer."""
        return isinstance(self.module, nn.Sequential)


def attempts_on(model: nn.Module, config: StudyConfig, settings: Settings) -> list[Attempt]:
    """Each method of a study on each layer that it may change, refused ones included, in the order of the methods.

    Args:
        model: the network at the settings.
        config: the methods, and the patterns of layers.
        settings: of the network.
    """
    leaves = {name: module for name, module in model.named_modules() if not any(True for _ in module.children())}
    allowed = set(matching_layers(config.layers, leaves))
    found = []
    ranks: Counter[str] = Counter()
    for method in config.offers():
        on = _algorithms if method.dense else _units
        found += [one for one in on(model, method, settings, ranks[method.name]) if one.layer in allowed]
        ranks[method.name] += 1
    return found


def _algorithms(model: nn.Module, method: Method, settings: Settings, rank: int) -> Iterator[Attempt]:
    for name, module, refusal in convolutions(model, method, settings):
        yield Attempt(method, (name,), module, refusal, None, rank)


def _units(model: nn.Module, method: Method, settings: Settings, rank: int) -> Iterator[Attempt]:
    for unit in units_of(model, accelerate.configuration(method)):
        if any(one.dim() > 1 for module in unit.layers.values() for one in module.parameters()):
            yield Attempt(method, unit.names, unit.module, unit.refusal, unit.stays, rank)


def too_dense(attempt: Attempt, density: Mapping[str, float], precision: str, device: torch.device) -> str | None:
    """Why a sparse product is not worth a trial, or nothing.

    Args:
        attempt: of any method.
        density: of what each layer reads, the fraction that is not zero.
        precision: of the network.
        device: on which layers are timed.
    """
    found, limit = density.get(attempt.layer), SPARSE_BELOW.get(precision, 1.0)
    if attempt.method.name != "sparse" or device.type != "cuda" or found is None or found <= limit:
        return None
    return f"{found:.0%} of its inputs are not zero; sparse products in {precision} need {limit:.0%} or less"


def hopeless(attempt: Attempt, ratios: Ratios) -> str | None:
    """Why a further variant of a method is not worth a trial, or nothing."""
    ratio = ratios.get((attempt.layer, attempt.method.name), 0.0)
    if ratio <= HOPELESS or attempt.method.dense:
        return None
    return f"the variant of {attempt.method.name} before it took {ratio:.1f} times as long as the dense layer"


def ratio_to_dense(trials: Sequence[Trial]) -> float:
    """The time of the fastest candidate over the dense one; 0 if none was timed."""
    ratios = [
        one.timing.median_us / one.dense_us
        for one in trials
        if one.impl != DENSE and one.timing is not None and one.dense_us
    ]
    return min(ratios, default=0.0)
