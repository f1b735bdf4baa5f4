"""The adaptive layer that a selection compares with the dense one, calibrated by its own times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.activation_sparsity import functional
from lamina.accelerate.methods.activation_sparsity.config import Impl
from lamina.accelerate.methods.activation_sparsity.cost import (
    Calibration,
    Line,
    Measured,
    Observed,
    PhaseImpls,
    union_density,
)
from lamina.accelerate.select import DENSE, LayerCall, Selector, layer_step, variant
from lamina.accelerate.select.cost import GRAPH_LAUNCH_US, CostModel, Prediction, Predictions, precision_of
from lamina.errors import UnsupportedError
from lamina.record import Timing
from lamina.spec import Phase
from lamina.spec.plan import CAPTURED

MAX_UNION_DENSITY = 0.9
"""Below it, a second point makes a line; nearer to 1, the difference of the times would be noise."""

MIN_DENSITY = 1e-3


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """The adaptive layer, calibrated on the call and with the density of its input; a requested ``impl`` as it is.

    Raises:
        UnsupportedError: the kernels do not support the input.
    """
    if layer.impl != "auto":
        return {f"impl={layer.impl}": lambda: layer}
    x = call.tensors[0]
    if not functional.is_supported(x):
        raise UnsupportedError(f"the kernels do not support {x.dtype} on {x.device.type}")
    observed = observe_density(layer, x)

    @cache  # made once to be timed, and again if it is selected
    def calibrated() -> nn.Module:
        layer.calibration, layer.density = calibrate(layer, call, observed, selector), lambda: observed
        made: nn.Module = layer
        return made

    return {f"impl=auto,density={observed.density:.2f}": calibrated}


def predictions(dense: nn.Module, layer: Any, call: LayerCall, model: CostModel) -> Predictions:
    """The dense layer, and the adaptive layer with constants from the machine's peaks and the density of its input.

    Raises:
        UnsupportedError: there is no cost model for the layer, or the kernels do not support the input.
    """
    x = call.tensors[0]
    if layer.impl != "auto":
        raise UnsupportedError(f"no cost model for impl={layer.impl}: use impl=auto")
    if not functional.is_supported(x):
        raise UnsupportedError(f"the kernels do not support {x.dtype} on {x.device.type}")
    observed = observe_density(layer, x)
    layer.calibration, layer.density = constants(precision_of(call), model), lambda: observed
    phases = [Phase.FORWARD, *([Phase.BACKWARD_DATA] if model.training and call.differentiated[0] else [])]
    choices = [layer._choose(phase, x, observed, None) for phase in phases]
    dense_us = model.dense_us(dense, call)
    saved = sum(each.times_us[DENSE] - each.times_us[each.impl] for each in choices if each.times_us)
    return {
        DENSE: Prediction(dense_us, lambda: dense),
        f"impl=auto,density={observed.density:.2f}": Prediction(dense_us - saved, lambda: layer),
    }


def constants(precision: str, model: CostModel) -> Calibration:
    """The constants of the cost model from a machine's peaks.

    ``nonzero`` loads a weight from shared memory for each multiplication, which bounds it by a quarter of the float32
    peak. ``row_union`` multiplies in float16, three times for float32 activations.
    """
    launch_us = GRAPH_LAUNCH_US if model.mode in CAPTURED else model.roofs.enqueue_us
    union = model.rate("fp16") / (3 if precision == "fp32" else 1)
    return Calibration(model.rate(precision), model.rate("fp32") / 4, union, model.bandwidth, launch_us)


def calibrate(layer: Any, call: LayerCall, observed: Observed, selector: Selector) -> dict[Phase, Measured]:
    """The measured times of each phase that has sparse implementations, as functions of the density.

    The forward pass is timed on the input as it is and, for ``row_union``, with its zeros filled in too. The gradient
    of the input is timed together with a dense forward pass, whose time is subtracted; the gradient of the output
    counts as dense.

    Raises:
        UnsupportedError: the dense forward pass could not be timed.
    """
    x = call.tensors[0]
    filled = replace(call, leaves=tuple(_fill_zeros(leaf) if leaf is x else leaf for leaf in call.leaves))

    def forward(impl: Impl, given: LayerCall) -> Callable[[], object]:
        return layer_step(_forced(layer, PhaseImpls(forward=impl)), given, selector.mode, training=False)

    def input_gradient(impl: Impl) -> Callable[[], object]:
        return layer_step(_frozen(_forced(layer, PhaseImpls(backward_data=impl))), call, selector.mode, training=True)

    steps = {
        "dense": forward("dense", call),
        "nonzero": forward("nonzero", call),
        "row_union": forward("row_union", call),
        "row_union of a dense input": forward("row_union", filled),
    }
    if selector.training and any(call.differentiated) and layer._dense_only(Phase.BACKWARD_DATA) is None:
        steps |= {"gradient dense": input_gradient("dense"), "gradient row_union": input_gradient("row_union")}
    times = {name: time.median_us for name, time in selector.timer(steps).items() if isinstance(time, Timing)}
    if "dense" not in times:
        raise UnsupportedError("the dense forward pass could not be timed")
    nonzero = union = None
    if "nonzero" in times:
        nonzero = Line(0.0, times["nonzero"] / max(observed.density, MIN_DENSITY))
    if "row_union" in times:
        union = Line(times["row_union"], 0.0)
        density = union_density(observed.union_density, layer._size(Phase.FORWARD, x).columns_per_list)
        if density is not None and density < MAX_UNION_DENSITY and "row_union of a dense input" in times:
            union = Line.through((density, times["row_union"]), (1.0, times["row_union of a dense input"]))
    found = {Phase.FORWARD: Measured(times["dense"], nonzero, union)}
    if {"gradient dense", "gradient row_union"} <= {*times}:
        dense, rows = (max(times[f"gradient {impl}"] - times["dense"], 1e-3) for impl in ("dense", "row_union"))
        found[Phase.BACKWARD_DATA] = Measured(dense, None, Line(rows, 0.0))
    return found


def observe_density(layer: nn.Module, x: Tensor) -> Observed:
    """The density of a layer's input: rows are channels or features."""
    return Observed.of(x, channels=1 if isinstance(layer, nn.Conv2d) and x.dim() == 4 else x.dim() - 1)


def _forced(layer: Any, impls: PhaseImpls) -> Any:
    return variant(layer, phase_impls=lambda x: impls)


def _frozen(layer: Any) -> nn.Module:
    """A layer whose weights need no gradient."""
    detached = {name: None if one is None else one.detach() for name, one in layer._parameters.items()}
    return variant(layer, _parameters=detached)


def _fill_zeros(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)
