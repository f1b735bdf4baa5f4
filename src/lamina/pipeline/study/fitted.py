"""Variants of layers with pruned inputs, whose remaining weights are fitted to what the dense layers compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import torch
from torch import nn

from lamina import run
from lamina.accelerate.methods.elimination import Eliminated
from lamina.errors import UsageError
from lamina.pipeline.deft.calibration import ELEMENTS, Material
from lamina.pipeline.deft.composition import candidates
from lamina.pipeline.study.folded import fold_groups
from lamina.pipeline.watch import Watch
from lamina.spec import Method

MOMENTS = 1 << 27
"""Elements of second moments that are collected at once: 1 GiB in float64, and as much again to solve for weights."""


def fitted(
    dense: nn.Module, options: Mapping[str, Iterable[str]], material: Material, device: torch.device, watch: Watch
) -> dict[str, dict[float, nn.Module]]:
    """By layer and keep ratio, the layer with pruned inputs.

    Weights are fitted to training samples: those that are fitted to the calibration samples would be judged by what
    they know. Layers of which nothing is pruned are left out.

    Args:
        dense: the trained network in evaluation mode.
        options: the implementations of each layer, those by other methods among them.
        material: samples.
        device: of the network.
        watch: is told why layers are left out.
    """
    wanted: dict[str, set[float]] = {}
    for layer, impls in options.items():
        for impl in impls:
            if Method.parse(impl).name == "eliminated":
                wanted.setdefault(layer, set()).add(keep_of(impl))
    if not wanted:
        return {}
    size = material.batch_size(ELEMENTS // 4)  # unfolded inputs of convolutions are materialized in float64
    ratios = sorted({ratio for row in wanted.values() for ratio in row})
    shared = Eliminated(recovery="least_squares")
    groups = fold_groups(dense) or {}
    made: dict[str, dict[float, nn.Module]] = {}
    for names in together({name: _inputs(dense.get_submodule(name)) for name in wanted}):
        batches = (run.moved(x, device) for x, _ in material.fitting(size))
        try:
            found = candidates(dense, shared, ratios, batches, groups, patterns=names, watch=watch).variants
        except UsageError as error:  # of none of them
            watch(str(error))
            continue
        made |= {name: {ratio: one.layer for ratio, one in row.items()} for name, row in found.items()}
    return made


def keep_of(impl: str) -> float:
    """The keep ratio in the written form of pruned inputs."""
    return float(dict(Method.parse(impl).options)["keep"])


def together(inputs: Mapping[str, int]) -> list[list[str]]:
    """Layers by their number of inputs, in groups whose second moments fit into memory, or of one layer."""
    groups: list[list[str]] = []
    used = inf
    for name, size in inputs.items():
        if used + size**2 > MOMENTS:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += size**2
    return groups


def _inputs(layer: nn.Module) -> int:
    """Elements of a row of the layer's largest weight matrix."""
    return max((one[0].numel() for one in layer.parameters() if one.dim() > 1), default=0)
