"""Pruned input channels whose producers need not compute them: both layers stay dense, and smaller.

Alone, a layer that reads a part of its input gathers it. Where all that read a producer's channels leave the same ones
out, the producer loses them (`lamina.accelerate.methods.elimination.network.fold`), and the gain is in both layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from lamina.accelerate.convert import put
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.convert import build, inputs_of
from lamina.accelerate.methods.elimination.network import fold
from lamina.accelerate.methods.elimination.search import aligned
from lamina.accelerate.select import LayerCall, Selector, layer_step, observe
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.deft.composition import flattened, foldable
from lamina.record import Timing
from lamina.spec import Method

FOLDED = "fold=true"
"""The option of such an implementation: ``eliminated[keep=0.5,fold=true]``."""


def fold_groups(model: nn.Module) -> dict[str, int] | None:
    """Neighbouring inputs of each layer that are one channel of its producer; ``None`` if no producer can be pruned."""
    return None if foldable(model) else flattened(model)


def fold_impl(method: Method, group: int) -> str:
    """The written form of pruned inputs whose producer is folded.

    Inputs that one channel of the producer gives are kept or pruned together. Where the weights are trained from here,
    the written form has to say so; else they are in the file of weights.
    """
    options = [(key, value) for key, value in method.options if key != "impl"]
    if group > 1 and ("select", "even") in options:
        options.append(("group", group))
    key, _, value = FOLDED.partition("=")
    return str(Method(method.name, options=(*options, (key, value))))


def fold_times(
    model: nn.Module,
    name: str,
    config: Eliminated,
    group: int,
    calls: Mapping[str, LayerCall],
    example: tuple[torch.Tensor, ...],
    chosen: Selector,
) -> tuple[Timing, Timing, dict[str, float]]:
    """The step of a layer and its producer, dense and without the channels that the layer does not read.

    With them goes the time of each layer over its dense one.

    Which channels are left out takes no part in the time: the first are kept.

    Args:
        model: at the settings of the study; not changed.
        name: of the layer.
        config: with the keep ratio.
        group: neighbouring inputs of the layer that one channel of the producer gives.
        calls: of the model's layers.
        example: its inputs.
        chosen: times.

    Raises:
        UnsupportedError: the layer has no producer of its own that can lose channels.
    """
    twin = copy.deepcopy(model)
    layer = twin.get_submodule(name)
    vectors = inputs_of(layer, config) // group
    kept = aligned((config.keep or 1.0) * vectors, vectors, -(-config.align // group)) * group
    if kept == vectors * group:
        raise UnsupportedError("nothing is pruned at this keep ratio")
    put(twin, name, build(layer, torch.arange(kept, device=next(layer.parameters()).device), config))
    try:
        twin, changed = fold(twin)
    except UsageError as error:
        raise UnsupportedError(str(error)) from error
    producers = [one.producer for one in changed if name in one.plain]
    if not producers or producers[0] not in calls or name not in calls:
        raise UnsupportedError("no producer computes its inputs for this layer alone")
    names = (producers[0], name)
    with torch.set_grad_enabled(chosen.training):
        after = observe(twin, names, example)
    steps = {}
    for one in names:
        for label, network, call in ((f"dense {one}", model, calls[one]), (one, twin, after[one])):
            steps[label] = layer_step(network.get_submodule(one), call, chosen.mode, chosen.training)
    times = chosen.timer(steps)
    dense, ours = (_sum([times[f"{side}{one}"] for one in names]) for side in ("dense ", ""))
    return dense, ours, {one: _median(times[one]) / _median(times[f"dense {one}"]) for one in names}


def _median(time: Timing | Exception) -> float:
    return _sum([time]).median_us


def _sum(times: list[Timing | Exception]) -> Timing:
    """The time of both; quartiles add, which overstates the spread."""
    for time in times:
        if isinstance(time, Exception):
            raise UnsupportedError(str(time)) from time
    known = [time for time in times if isinstance(time, Timing)]
    median, q1, q3 = (sum(getattr(time, which) for time in known) for which in ("median_us", "q1_us", "q3_us"))
    return Timing(known[0].clock, known[0].l2, median, q1, q3, min(time.n for time in known))
