"""A weight format for each layer, where the cost model predicts a speedup and accuracy stays within the budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule

from lamina import run
from lamina.accelerate.convert import put
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.accelerate.methods.weight_only.config import FORMATS, Format
from lamina.accelerate.methods.weight_only.convert import refusal, replace
from lamina.accelerate.methods.weight_only.cost import BITS, Rates, choose
from lamina.accelerate.methods.weight_only.formats import errors, pack
from lamina.accelerate.methods.weight_only.functional import chosen
from lamina.build import DTYPES
from lamina.errors import UsageError, nearest
from lamina.record import Roofs

CHOICES = ("auto", "none", *FORMATS)
"""``auto`` is the 8-bit format with the smallest error, where a speedup is predicted; another applies to all layers."""


@dataclass(frozen=True)
class Stored:
    """The weight format of one layer, None for dense weights, and why.

    ``error`` is the RMS of the weights' relative errors.
    """

    format: Format | None
    reason: str
    error: float | None = None


def rates_of(roofs: Roofs, precision: str) -> Rates:
    """The rates of the cost model from a machine's measured roofline.

    Raises:
        UsageError: the roofline has no rate for this precision.
    """
    if precision not in roofs.gemm_gflops:
        raise UsageError(f"expected a measured rate of {precision} products on {roofs.device}, got none; use fp32")
    return Rates(roofs.read_gbs, roofs.gemm_gflops[precision])


def suggest(
    model: nn.Module, example: run.Inputs, choice: str, rates: Callable[[], Rates], precision: str
) -> dict[str, Stored]:
    """Suggest a format for each layer with weights. Accuracy is not considered.

    Args:
        model: in evaluation mode, on the device where it will run.
        example: an input, or a tuple of them, with the batch size to optimize for.
        choice: one of `CHOICES`.
        rates: returns those of the device; called only where a kernel could run.
        precision: of the layers.

    Raises:
        UsageError: no such format.
    """
    if choice not in CHOICES:
        raise UsageError(f"format {choice!r} is unknown: {nearest(choice, CHOICES)}")
    rows = _rows(model, example)
    return {
        name: _suggested(model.get_submodule(name), count, choice, rates, precision) for name, count in rows.items()
    }


def _suggested(layer: nn.Module, rows: int, choice: str, rates: Callable[[], Rates], precision: str) -> Stored:
    if choice == "none":
        return Stored(None, "")
    if reason := refusal(layer):
        return Stored(None, reason)
    matrix = layer.get_parameter("weight").detach().flatten(1).float()
    if choice != "auto":
        format = cast(Format, choice)
        return Stored(format, f"{format} was requested", _error(matrix, format))
    if not isinstance(layer, nn.Linear):
        return Stored(None, "a convolution dequantizes its weights in memory: no speedup")
    format = min((one for one in FORMATS if one not in BITS), key=lambda one: _error(matrix, one))
    like = torch.empty(0, dtype=DTYPES[precision], device=matrix.device)
    if chosen("auto", like, pack(matrix, format, "row")) != "kernel":
        return Stored(None, f"no kernel dequantizes {format} to {precision} on {matrix.device.type}")
    outputs, inputs = matrix.shape
    found = choose(rows, outputs, inputs, rates(), format, dense_bits=8 * DTYPES[precision].itemsize)
    return Stored(found.format, found.reason, _error(matrix, format) if found.format else None)


def _error(matrix: Tensor, format: Format) -> float:
    return errors(matrix, pack(matrix, format, "row")).rms


@torch.no_grad()
def _rows(model: nn.Module, example: run.Inputs) -> dict[str, int]:
    """GEMM rows of each layer with weights, in the order of execution."""
    seen: dict[str, int] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if not isinstance(first, Tensor):
                return
            outputs = first.shape[1] if first.dim() > 3 else first.shape[-1]
            seen[name] = first.numel() // outputs

        return hook

    leaves = {
        n: m
        for n, m in model.named_modules()
        if not list(m.children()) and getattr(m, "weight", None) is not None and not isinstance(m, ScriptModule)
    }
    handles = [module.register_forward_hook(watch(name)) for name, module in leaves.items() if name]
    try:
        run.forward(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def store_weights(
    model: nn.Module,
    suggested: Mapping[str, Stored],
    accuracy: Callable[[nn.Module], float],
    min_accuracy: float,
    worded: Callable[[float], str] = "accuracy {:.2f} %".format,
) -> dict[str, Stored]:
    """Quantize layers of the model one by one, each only if accuracy stays at ``min_accuracy`` or above.

    Args:
        model: changed in place.
        suggested: as `suggest` returns it.
        accuracy: returns that of a model, in percent.
        min_accuracy: in percent.
        worded: what accuracies are called in reasons.
    """
    result = dict(suggested)
    for name, stored in suggested.items():
        if stored.format is None:
            continue
        quantized = replace(model.get_submodule(name), WeightOnly(stored.format))
        if (got := accuracy(put(copy.deepcopy(model), name, quantized))) >= min_accuracy:
            put(model, name, quantized)
        else:
            reason = f"{stored.format}: {worded(got)}; the limit is {worded(min_accuracy)}"
            result[name] = Stored(None, reason, stored.error)
    return result
