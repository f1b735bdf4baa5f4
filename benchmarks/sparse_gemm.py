"""Claim: at how many zeros of an activation map it pays to leave them out, by pattern and precision.

A convolution as im2col and a product: what im2col, conversion and product take by the library (dense, and CSR as
cuSPARSE has it), from ELLPACK-DIB and over united rows, and what the convolution takes straight from the map. The dense
product reads the same zeros, since a GPU is faster on them. Recorded masks are read from benchmarks/masks, where
``lamina sparsity NETWORK --masks NETWORK.npz`` may write them. Every result is held to float64. ``smoke`` does a little
on the CPU, without the kernels.

Run: python -m benchmarks.sparse_gemm full
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import results
from benchmarks.gpus import Rows, on_every_gpu
from lamina import measure, run
from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity import functional, ops, reference
from lamina.accelerate.methods.activation_sparsity.ellpack import ops as ellpack_ops
from lamina.accelerate.methods.activation_sparsity.ellpack.cuda import product_tile
from lamina.accelerate.methods.activation_sparsity.im2col import POINTWISE, matrix_as_map
from lamina.accelerate.methods.activation_sparsity.row_union import ops as row_union_ops
from lamina.accelerate.methods.activation_sparsity.row_union.channels import ops as channels_ops
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.ops import split_terms
from lamina.accelerate.methods.activation_sparsity.tiles import compacted_conv_tile, row_union_tile
from lamina.accelerate.runtime import triton_ops as launching
from lamina.build import DTYPES
from lamina.build.models import create
from lamina.simulate.workloads import pattern, read_masks

MASKS = Path(__file__).parent / "masks"
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.01, max_time_s=0.06)
ONCE = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=1)


@dataclass(frozen=True)
class Problem:
    """A convolution over square images, padded to keep their size."""

    name: str
    images: int
    channels: int
    size: int
    outputs: int
    kernel: int

    @property
    def window(self) -> Conv2dGeometry:
        return Conv2dGeometry(self.kernel, self.kernel, 1, 1, self.kernel // 2, self.kernel // 2)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.images, self.channels, self.size, self.size

    def layer(self) -> nn.Conv2d:
        return nn.Conv2d(self.channels, self.outputs, self.kernel, padding=self.kernel // 2, bias=False)


@dataclass(frozen=True)
class Scope:
    """How much is measured, and where."""

    device: str
    problems: tuple[Problem, ...]
    zeros: tuple[int, ...]
    precisions: tuple[str, ...]
    repeat: measure.Repeat
    recorded: bool = True

    @property
    def pieces(self) -> tuple[Problem | None, ...]:
        """What is measured at a time: a problem, or, as None, all maps that were recorded."""
        return (*self.problems, None) if self.recorded else self.problems


CLAIM = Problem("claim", 16, 256, 28, 512, 3)
"""As a product 512 x 2304 x 12544."""

SCOPES = {
    "full": Scope(
        "cuda",
        (CLAIM, Problem("cifarnet conv2", 128, 64, 16, 64, 5)),  # the second is of Spartan's figure 6.3
        (0, 50, 60, 70, 80, 85, 90, 95, 98, 99), ("fp32", "tf32", "bf16"), REPEAT,
    ),
    "few": Scope("cuda", (CLAIM,), (0, 70, 90, 98), ("fp32", "tf32", "bf16"), REPEAT),
    "smoke": Scope("cpu", (Problem("small", 1, 4, 5, 3, 3),), (0, 90), ("fp32",), ONCE, recorded=False),
}  # fmt: skip
PATTERNS = ("iid", "channel", "spatial")
ONLY_IID = (0, 60, 85, 99)
"""Zeros in % that are measured in one pattern only: without zeros there is one pattern, and the others are close."""


@dataclass(frozen=True)
class Case:
    """A map with its zeros, in the precision that is measured."""

    problem: Problem
    pattern: str
    x: Tensor
    weight: Tensor

    @property
    def zeros(self) -> float:
        """Per cent."""
        return round(100 * (1 - (self.x != 0).float().mean().item()), 1)


def cases(problem: Problem, scope: Scope, precision: str, patterns: Sequence[str] = PATTERNS) -> Iterator[Case]:
    """Maps like the output of a ReLU, exact in float16, so that all implementations read the same values."""
    torch.manual_seed(0)
    dtype, full = DTYPES[precision], torch.randn(problem.shape).abs() + 0.01
    weight = torch.randn(problem.outputs, problem.channels, problem.kernel, problem.kernel, dtype=torch.float32)
    weight = (weight / weight[0].numel() ** 0.5).to(scope.device, dtype)
    for name in patterns:
        for zeros in scope.zeros:
            if len(patterns) > 1 and name != "iid" and zeros in ONLY_IID:
                continue
            mask = zeros_of(name, problem.shape, zeros)
            yield Case(problem, name, (full * mask).half().to(scope.device, dtype), weight)


@cache
def zeros_of(name: str, shape: tuple[int, int, int, int], zeros: float) -> Tensor:
    """Where a map is not zero, the same in every precision."""
    return torch.from_numpy(pattern(name, shape, 1 - zeros / 100, seed=0))


def recorded(scope: Scope, precision: str) -> Iterator[Case]:
    """The newest masks of convolutions that keep their images' size, in batches of 64."""
    for path in sorted(MASKS.glob("*.npz")):
        masks = {each.name: each for each in read_masks(path)}
        network = create(path.stem, None)
        for name, each in masks.items():
            conv: Any = network.get_submodule(name)
            channels, size = each.mask.shape[1:3]
            problem = Problem(f"{path.stem} {name}", 64, channels, size, conv.out_channels, conv.kernel_size[0])
            shape = problem.layer()(torch.zeros(1, *problem.shape[1:])).shape
            if each.mask.all() or tuple(conv(torch.zeros(1, *problem.shape[1:])).shape) != tuple(shape):
                continue
            first = next(cases(problem, scope, precision))
            mask = torch.from_numpy(each.of(problem.shape)).to(scope.device)
            yield Case(problem, "recorded", first.x * mask, first.weight)


def every_case(problem: Problem | None, scope: Scope, precision: str) -> Iterator[Case]:
    """The maps of one piece of a scope."""
    return recorded(scope, precision) if problem is None else cases(problem, scope, precision)


@dataclass(frozen=True)
class Part:
    """One timed call. ``result`` returns its product, if it computes one; ``waits`` if it synchronizes."""

    impl: str
    what: str
    call: Callable[[], Any]
    result: Callable[[Any], Tensor] | None = None
    waits: bool = False
    layout: str = "nchw"


def parts(case: Case, kernels: bool) -> Iterator[Part]:
    """Everything timed of a case; calls that synchronize cannot be captured."""
    problem, x = case.problem, case.x
    window, at = problem.window, ops.transposed_weight(case.weight).contiguous()
    b = reference.im2col(x, window)
    a, b_transposed = at.mT.contiguous(), b.mT.contiguous()
    images, pixels = x.shape[0], x.shape[2] * x.shape[3]

    def as_matrix(y: Tensor) -> Tensor:
        return y.reshape(images, -1, pixels).movedim(0, 1).reshape(problem.outputs, -1)

    padding = problem.kernel // 2
    yield Part("dense", "im2col", lambda: F.unfold(x, problem.kernel, padding=padding))
    yield Part("dense", "product", lambda: a @ b, lambda y: y)
    for layout, memory in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
        laid = [one.contiguous(memory_format=memory) for one in (x, case.weight)]
        yield Part("dense", "convolution", partial(F.conv2d, *laid, padding=padding), as_matrix, layout=layout)
    full = launching.precision() == "tf32x3"
    if x.dtype == torch.float32 and full and case.pattern == "iid":  # neither TF32 nor patterns matter to it
        csr = b_transposed.to_sparse_csr()
        yield Part("csr", "convert, called", lambda: b_transposed.to_sparse_csr(), waits=True)
        yield Part("csr", "product", lambda: csr @ at, lambda y: y.mT, waits=True)
    if not kernels:
        return
    matrix = matrix_as_map(b)
    y = b.new_empty(1, problem.outputs, 1, b.shape[1])
    dtypes = ("same", "fp16", "bf16")[: 1 if x.dtype != torch.float32 else 3 if full else 2]
    for weights in dtypes:
        impl = "nonzero" if weights == "same" else f"nonzero[weights={weights}]"
        stored = at.to(ops.WEIGHT_DTYPES.get(weights, at.dtype))
        panel = product_tile(problem.outputs, b.shape[1], stored.itemsize).panel
        sparse = functional.compress(b, panel=panel)
        product = partial(ellpack_ops.nonzero_product, stored, None, sparse, y, (1, b.shape[1]))
        yield Part(impl, "product", product, lambda y: y[0, :, 0])
        yield Part(impl, "convolution", partial(ops.product, at, None, x, window, "nonzero", weights), as_matrix)
    panel = product_tile(problem.outputs, b.shape[1], at.itemsize).panel
    scales = ellpack_ops.scales_of(b, -(-b.shape[0] // panel))
    yield Part("nonzero", "convert", lambda: functional.compress(b, panel=panel))
    yield Part("nonzero", "convert, called", lambda: functional.compress(b, panel=panel), waits=True)
    yield Part("nonzero", "convert by a known scale", lambda: functional.compress(b, panel=panel, scales=scales))
    yield Part("nonzero", "convert the map", lambda: functional.compress(x, panel=panel))
    yield Part("nonzero", "count", lambda: ellpack_ops.count_nonzeros(matrix))
    x_terms, w_terms = split_terms(x)
    width = row_union_tile(problem.outputs, b.shape[1]).block_n
    block_k = compacted_conv_tile(problem.outputs, b.shape[1], w_terms).block_k
    yield Part("row_union", "convert", lambda: row_union_ops.row_union(matrix, POINTWISE, width, x_terms))
    yield Part("row_union", "convert the map", lambda: channels_ops.compact_channels(x, block_k, x_terms))
    for impl in ("row_union", "row_union_fp16")[: 2 if x_terms == 2 else 1]:
        yield Part(impl, "product", partial(ops.product, at, None, matrix, POINTWISE, impl), lambda y: y[0, :, 0])
        for layout, memory in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
            one = x.contiguous(memory_format=memory)
            call = partial(ops.product, at, None, one, window, impl)
            yield Part(impl, "convolution", call, as_matrix, layout=layout)


def clocks(scope: Scope) -> tuple[Any, Any]:
    """A clock for calls that can be captured in a graph, and one for the others."""
    if scope.device == "cpu":
        return measure.CpuClock(), measure.CpuClock()
    return measure.GraphClock(scope.device), measure.EventsClock(scope.device)


def timed(clock: Any, call: Callable[[], object], repeat: measure.Repeat) -> dict[str, Any]:
    return results.quartiles(clock.time(call, repeat=repeat)) | {"timing": clock.name}


def row(case: Case, part: Part, precision: str, error: float | None, time: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the results."""
    layer = f"{case.problem.name} {case.pattern} {case.zeros:g}% {part.what}"
    checked = {"rel_error": error} | ({"unchecked": "checked by the products"} if error is None else {})
    return {
        "workload": case.problem.name, "layer": layer, "phase": "forward", "precision": precision,
        "layout": part.layout, "impl": part.impl, "batch": case.problem.images, "l2": "warm", "by": "lamina",
        "pattern": case.pattern, "zeros": case.zeros, "what": part.what, **checked, **time,
    }  # fmt: skip


@torch.no_grad()
def measured(case: Case, scope: Scope, precision: str) -> Iterator[dict[str, Any]]:
    """A row for each part of a case, checked against float64."""
    graph, events = clocks(scope)
    exact = case.weight.double().permute(0, 2, 3, 1).flatten(1) @ reference.im2col(case.x.double(), case.problem.window)
    for part in parts(case, case.x.is_cuda):
        error = run.relative_error([part.result(part.call())], [exact]) if part.result else None
        time = timed(events if part.waits else graph, part.call, scope.repeat)
        yield row(case, part, precision, error, time)


def best(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Times in the better layout by problem, precision, pattern, zeros, what and implementation."""
    found: dict[tuple[Any, ...], float] = {}
    for each in rows:
        key = tuple(each[name] for name in ("workload", "precision", "pattern", "zeros", "what", "impl"))
        found[key] = min(each["median_us"], found.get(key, float("inf")))
    return found


def break_even(time: Mapping[tuple[Any, ...], float]) -> dict[str, dict[str, Any]]:
    """By problem, precision and pattern: the zeros from which on an implementation is faster than dense."""
    found: dict[str, dict[str, Any]] = {}
    for what in ("product", "convolution"):
        for key in dict.fromkeys(k[:3] for k in time if k[4] == what):
            shares = sorted({k[3] for k in time if k[:3] == key})
            for impl in sorted({k[5] for k in time if k[:3] == key and k[4] == what} - {"dense"}):
                won = [time[*key, z, what, impl] < time[*key, z, what, "dense"] for z in shares]
                first = next((z for i, z in enumerate(shares) if all(won[i:])), "never")
                found.setdefault(f"zeros in % from which the {what} is faster: {', '.join(key)}", {})[impl] = first
    return found


def breakdown(time: Mapping[tuple[Any, ...], float]) -> dict[str, dict[str, float]]:
    """Spartan's figure 6.3: im2col, conversion and product in CSR and ELLPACK-DIB, over dense im2col and product."""
    found = {}
    for key in dict.fromkeys(k[:4] for k in time if k[1] == "fp32"):
        whole = time[*key, "im2col", "dense"] + time[*key, "product", "dense"]
        shares = {"im2col": time[*key, "im2col", "dense"] / whole}
        for impl in ("csr", "nonzero"):
            for what in ("convert, called", "convert", "product"):
                if (*key, what, impl) in time:
                    shares[f"{impl} {what}"] = time[*key, what, impl] / whole
        found[f"parts over dense: {key[0]}, {key[2]} {key[3]:g}%"] = {k: round(v, 3) for k, v in shares.items()}
    return found


def measured_piece(piece: tuple[Scope, str, Problem | None]) -> Rows:
    """All that is measured of one problem in one precision, or of the maps that were recorded."""
    scope, precision, problem = piece
    with run.precision_mode(precision):
        return [row for case in every_case(problem, scope, precision) for row in measured(case, scope, precision)]


def main() -> None:
    asked = results.arguments("sparse_gemm", scope=tuple(SCOPES))
    scope = SCOPES[asked.scope]
    claim = "sparse_gemm" if asked.scope == "full" else f"sparse_gemm_{asked.scope}"
    rows: Rows = []
    # Written whenever a piece is done, so that an end before the last one leaves what there is.
    for rows in on_every_gpu(measured_piece, [(scope, *each) for each in product(scope.precisions, scope.pieces)]):
        time = best(rows)
        summary = {**break_even(time), **breakdown(time)}
        print(results.write(claim, scope.device, rows, summary, asked, f"sparse_gemm {asked.scope}"), flush=True)
    for row in rows:
        print(row["precision"], row["layer"], row["impl"], round(row["median_us"], 1), row["rel_error"])
    for key, value in summary.items():
        print(key, value)


if __name__ == "__main__":
    main()
