"""Roofline cost models: predicted times of layers from FLOPs, bytes and a machine's peaks, without running them.

A launch takes the larger of its compute time and its memory time. Launches follow one another; where Python launches
them, they take at least the launch overhead of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from lamina.accelerate.select.observed import LayerCall
from lamina.accelerate.select.selection import DENSE, MIN_SPEEDUP
from lamina.errors import UnsupportedError
from lamina.record import Mode, Selection
from lamina.record.roofs import Roofs
from lamina.spec.plan import CAPTURED

COMPUTE = 0.6
"""Fraction of the measured GEMM rate that a layer's product reaches."""
MEMORY = 0.7
"""Fraction of the measured copy bandwidth that a kernel reaches."""
GRAPH_LAUNCH_US = 2.0
"""Least time from one kernel of a CUDA graph to the next."""
PRODUCT_US = 6.0
"""Fixed time of a library's product: its tiles do not fill the GPU at the start and at the end.

These four are fitted to the dense layers of `benchmarks/never_slower.py` on an H200: the medians of predicted over
measured times are 0.8 to 1.4 by layer type and precision.
"""


class Launch(NamedTuple):
    """One kernel: bytes read and written, FLOPs, their precision (by default the call's), and a fixed time."""

    bytes: float
    flops: float = 0.0
    precision: str = ""
    fixed_us: float = 0.0


class Prediction(NamedTuple):
    """A candidate: its predicted time in microseconds, and what makes its module."""

    time_us: float
    make: Callable[[], nn.Module]


Predictions = Mapping[str, Prediction]
"""Candidates by implementation."""


@dataclass(frozen=True)
class Gemm:
    """A layer as products ``(rows, summed) x (summed, outputs)``; ``x`` and ``y`` are elements of input and output.

    Attributes:
        x_gradient: whether a training step computes the gradient with respect to the input.
        itemsize: bytes of an element of the operands.
        cast: whether autocast converts the float32 weights, and their gradient, in each step.
    """

    rows: int
    outputs: int
    summed: int
    x: int
    y: int
    x_gradient: bool
    itemsize: int
    cast: bool

    @property
    def flops(self) -> int:
        """Of one phase."""
        return 2 * self.rows * self.outputs * self.summed

    @property
    def weights(self) -> int:
        """Elements of the weight."""
        return self.outputs * self.summed

    def phases(self, training: bool) -> int:
        """How many products of this size a step computes."""
        return 1 + (1 + self.x_gradient if training else 0)

    def launches(self, training: bool) -> list[Launch]:
        """The library's products, and autocast's conversions of the weights."""
        product = Launch((self.x + self.y + self.weights) * self.itemsize, self.flops, fixed_us=PRODUCT_US)
        casts = [Launch(self.weights * (4 + self.itemsize))] * ((2 if training else 1) if self.cast else 0)
        return [product] * self.phases(training) + casts


def gemm(module: nn.Module, call: LayerCall) -> Gemm:
    """The sizes of a linear layer or convolution on a call.

    Raises:
        UnsupportedError: another layer, for which there is no cost model.
    """
    x = call.tensors[0]
    layer: Any = module
    weight: Any = getattr(layer, "weight", None)
    match module:
        case nn.Linear():
            rows, elements = x.numel() // layer.in_features, x.numel()
            outputs, summed = weight.shape
        case nn.Conv1d() | nn.Conv2d():
            kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
            reversed_pads = layer._reversed_padding_repeated_twice  # of the last axis first, both sides
            pads = [sum(reversed_pads[2 * axis : 2 * axis + 2]) for axis in reversed(range(len(kernel)))]
            sizes = zip(x.shape[-len(kernel) :], kernel, stride, pads, dilation, strict=True)
            positions = prod((size + pad - d * (k - 1) - 1) // step + 1 for size, k, step, pad, d in sizes)
            batch = x.shape[0] if x.dim() == len(kernel) + 2 else 1
            rows, elements = batch * positions, x.numel()
            outputs, summed = weight.shape[0], weight[0].numel()
        case _:
            raise UnsupportedError(f"no cost model for {type(module).__name__}")
    itemsize = x.itemsize if call.autocast is None else call.autocast.itemsize
    cast = call.autocast is not None and weight.dtype != call.autocast
    return Gemm(rows, outputs, summed, elements, rows * outputs, call.differentiated[0], itemsize, cast)


def precision_of(call: LayerCall) -> str:
    """The precision that a layer's products run in: of its input or autocast, ``tf32`` where PyTorch allows it."""
    dtype = call.autocast or call.tensors[0].dtype
    if dtype == torch.float32:
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "fp32"
    return {torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")


@dataclass(frozen=True)
class CostModel:
    """Predicts layers on one machine.

    Args:
        roofs: measured peaks of the machine.
        mode: that the model will run in.
        training: whether steps have a backward pass.
    """

    roofs: Roofs
    mode: Mode
    training: bool

    def rate(self, precision: str) -> float:
        """FLOPs per microsecond that products reach in a precision; the lowest rate where it is not measured."""
        known = self.roofs.gemm_gflops
        return COMPUTE * known.get(precision, min(known.values())) * 1e3

    @property
    def bandwidth(self) -> float:
        """Bytes per microsecond that memory-bound kernels reach."""
        return MEMORY * self.roofs.copy_gbs * 1e3

    def time_us(self, launches: Iterable[Launch], precision: str) -> float:
        """Microseconds of launches, one after the other."""
        launches = [*launches]
        graph = self.mode in CAPTURED
        gap = GRAPH_LAUNCH_US if graph else 0.0
        busy = sum(
            max(each.flops / self.rate(each.precision or precision), each.bytes / self.bandwidth) + each.fixed_us + gap
            for each in launches
        )
        return busy if graph else max(busy, len(launches) * self.roofs.enqueue_us)

    def dense_us(self, module: nn.Module, call: LayerCall) -> float:
        """Microseconds of a dense layer's step.

        Raises:
            UnsupportedError: there is no cost model for it.
        """
        return self.time_us(gemm(module, call).launches(self.training), precision_of(call))

    def select(self, method: str, predictions: Predictions) -> Selection:
        """The candidate with the least predicted time; dense unless it is predicted to be faster by `MIN_SPEEDUP`."""
        times = {name: each.time_us for name, each in predictions.items()}
        best = min(times, key=lambda name: times[name])
        listed = ", ".join(f"{name} {time:.3g} us" for name, time in sorted(times.items(), key=lambda one: one[1]))
        source = f"predicted by the cost model of {method} from peaks of {self.roofs.device}: {listed}"
        if best != DENSE and times[DENSE] < MIN_SPEEDUP * times[best]:
            source += f"; {best} is less than {MIN_SPEEDUP - 1:.0%} faster"
            best = DENSE
        return Selection(best, f"{best}: {source}", times, self.mode, predicted=True)
