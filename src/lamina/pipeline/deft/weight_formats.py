"""A format for the weights of each layer: where the cost model says that fewer bytes help, and accuracy stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.accelerate.methods.weight_only.cost import BITS, Rates, choose
from lamina.accelerate.methods.weight_only.config import FORMATS, Format
from lamina.accelerate.methods.weight_only.convert import refusal, replace
from lamina.accelerate.methods.weight_only.formats import errors, pack
from lamina.accelerate.methods.weight_only.functional import chosen
from lamina.build import DTYPES
from lamina.errors import UsageError, nearest
from lamina.record import Roofs

WANTED = ("auto", "none", *FORMATS)
"""``auto`` takes the nearest 8-bit format where the cost model predicts a gain; a named one is for every layer."""


@dataclass(frozen=True)
class Stored:
    """How the weights of one layer are stored: ``format``, or nothing where they stay as they are, and why.

    ``error`` is the root of the mean square of the weights' relative errors.
    """

    format: Format | None
    reason: str
    error: float | None = None


def rates_of(roofs: Roofs, precision: str) -> Rates:
    """What the cost model needs of a machine's measured roofs.

    Raises:
        UsageError: the roofs lack this precision.
    """
    if precision not in roofs.gemm_gflops:
        raise UsageError(f"expected a measured rate of {precision} products on {roofs.device}, got none; use fp32")
    return Rates(roofs.read_gbs, roofs.gemm_gflops[precision])


def suggest(
    model: nn.Module, example: Tensor, wanted: str, rates: Callable[[], Rates], precision: str
) -> dict[str, Stored]:
    """What to store each layer with weights in, before accuracy is asked.

    Args:
        model: in evaluation mode, on the device where it will run.
        example: an input of the batch that the choice is for.
        wanted: one of `WANTED`.
        rates: answers those of that device; asked where a kernel could run.
        precision: of the layers' numbers.

    Raises:
        UsageError: no such format.
    """
    if wanted not in WANTED:
        raise UsageError(f"format {wanted!r} is unknown: {nearest(wanted, WANTED)}")
    rows = _rows(model, example)
    return {
        name: _suggested(model.get_submodule(name), count, example, wanted, rates, precision)
        for name, count in rows.items()
    }


def _suggested(
    layer: nn.Module, rows: int, example: Tensor, wanted: str, rates: Callable[[], Rates], precision: str
) -> Stored:
    if wanted == "none":
        return Stored(None, "")
    if reason := refusal(layer):
        return Stored(None, reason)
    matrix = layer.get_parameter("weight").detach().flatten(1).float()
    if wanted != "auto":
        format = cast(Format, wanted)
        return Stored(format, f"{format} was asked for", _error(matrix, format))
    if not isinstance(layer, nn.Linear):
        return Stored(None, "a convolution widens its weights in memory: nothing to gain")
    format = min((one for one in FORMATS if one not in BITS), key=lambda one: _error(matrix, one))
    like = torch.empty(0, dtype=DTYPES[precision], device=example.device)
    if chosen("auto", like, pack(matrix, format, "row")) != "kernel":
        return Stored(None, f"no kernel widens {format} for {precision} on {example.device.type}")
    outputs, inputs = matrix.shape
    found = choose(rows, outputs, inputs, rates(), format, dense_bits=8 * DTYPES[precision].itemsize)
    return Stored(found.format, found.reason, _error(matrix, format) if found.format else None)


def _error(matrix: Tensor, format: Format) -> float:
    return errors(matrix, pack(matrix, format, "row")).rms


@torch.no_grad()
def _rows(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Rows of the product of each layer with weights of its own, in the order in which they run."""
    seen: dict[str, int] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            outputs = first.shape[1] if first.dim() > 3 else first.shape[-1]
            seen[name] = first.numel() // outputs

        return hook

    leaves = {
        n: m for n, m in model.named_modules() if not list(m.children()) and getattr(m, "weight", None) is not None
    }
    handles = [module.register_forward_hook(watch(name)) for name, module in leaves.items() if name]
    try:
        model(example)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def store_weights(
    model: nn.Module, suggested: Mapping[str, Stored], accuracy: Callable[[nn.Module], float], least: float
) -> dict[str, Stored]:
    """Put suggested formats into the model, layer by layer, as long as accuracy stays at ``least`` or above.

    Args:
        model: changed in place.
        suggested: as `suggest` gives it.
        accuracy: of a model.
        least: what must remain.
    """
    result = dict(suggested)
    for name, stored in suggested.items():
        if stored.format is None:
            continue
        parent, _, last = name.rpartition(".")
        owner, dense = model.get_submodule(parent), model.get_submodule(name)
        setattr(owner, last, replace(dense, WeightOnly(stored.format)))
        if (got := accuracy(model)) < least:
            setattr(owner, last, dense)
            reason = f"{stored.format}: accuracy {got:.2f} % is below the {least:.2f} % allowed"
            result[name] = Stored(None, reason, stored.error)
    return result
