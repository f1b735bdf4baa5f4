"""Claim: layers that choose whether to leave out zeros are never slower than 0.98 of the dense layer's speed.

Adaptive convolutions, calibrated by products of the same run and told the density of their input, against dense ones:
inference and whole steps, over shapes, shares of zeros and patterns. Each row has what was chosen, and why. ``smoke``
does a little on the CPU, where all is dense.

Run: python -m benchmarks.sparse_layers full
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.sparse_gemm import SCOPES, Case, Problem, Scope, cases, clocks, recorded, timed
from lamina import run
from lamina.accelerate.sparsity import functional, ops, reference
from lamina.accelerate.sparsity.dispatch import Calibration
from lamina.accelerate.sparsity.monitor import Observation
from lamina.accelerate.sparsity.monitor.reference import as_matrices, count
from lamina.accelerate.sparsity.nn import SparseAdaptiveConv2d, choices_of
from lamina.accelerate.sparsity.tiles import union_tile
from lamina.spec import Phase

LEAST = 0.98
"""Of the dense layer's speed."""

LAYOUTS = ("nchw", "nhwc")
LAYERS = (
    Problem("alexnet conv3", 128, 192, 13, 384, 3), Problem("vgg16 conv2_2", 32, 128, 112, 128, 3),
    Problem("vgg16 conv4_2", 32, 512, 28, 512, 3), Problem("resnet conv5", 64, 512, 7, 512, 3),
    Problem("pointwise", 64, 256, 14, 1024, 1), Problem("tiny", 1, 16, 8, 16, 3),
)  # fmt: skip
GRIDS = {
    "full": replace(SCOPES["full"], problems=LAYERS, zeros=(0, 70, 90, 95, 99)),
    "few": replace(SCOPES["few"], problems=LAYERS[:1] + LAYERS[-1:]),
    "smoke": SCOPES["smoke"],
}


def observed(x: Tensor) -> Observation:
    """What the sparsity monitor knows of a map after it has looked at it."""
    matrices = as_matrices(x)
    rows, columns = matrices.shape[1], matrices.shape[0] * matrices.shape[2]
    return Observation.from_words("x", 0, rows, columns, count(matrices).tolist())


@torch.no_grad()
def calibrated(problem: Problem, scope: Scope, precision: str) -> Calibration:
    """Constants of the cost model, from products of one problem: few zeros of the input are left, or few channels."""
    clock, _ = clocks(scope)
    full, sparse, channels = (
        next(iter(cases(problem, replace(scope, zeros=(zeros,)), precision, (name,))))
        for zeros, name in ((0, "iid"), (90, "iid"), (75, "channel"))
    )
    window, at = problem.window, ops.turned(full.weight).contiguous()
    b, a = reference.columns_of(full.x, window), at.mT.contiguous()
    operations = 2.0 * at.numel() * b.shape[1]

    def us(call: Callable[[], object]) -> float:
        return float(timed(clock, call, scope.repeat)["median_us"])

    little = full.x.flatten()[:1]
    rates = {
        "dense": operations / us(lambda: a @ b),
        "bandwidth": 2 * full.x.numel() * full.x.itemsize / us(lambda: full.x.clone()),
        "launch_us": us(lambda: little.neg()),
    }
    if not full.x.is_cuda:
        return Calibration(nonzero=rates["dense"], union=rates["dense"], **rates)
    held, live = functional.compress(sparse.x), observed(channels.x)
    y = ops.product(at, None, sparse.x, window, "nonzero")
    size = sparse.x.shape[2], sparse.x.shape[3]
    product = us(lambda: ops.nonzero_product(at, None, held, y, size, window))
    width = union_tile(problem.outputs, b.shape[1], b.itemsize).columns
    lists = us(lambda: ops.united(channels.x, window, width))
    union = us(lambda: ops.product(at, None, channels.x, window, "union")) - lists
    share = observed(sparse.x).density
    return Calibration(
        nonzero=share * operations / product, union=live.union_density[width] * operations / union, **rates
    )


def measured(
    case: Case, scope: Scope, calibration: Calibration, precision: str, layout: str
) -> Iterator[dict[str, Any]]:
    """Dense and adaptive, inference and step."""
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    clock, _ = clocks(scope)
    dense: Any = case.problem.layer().to(case.weight)
    dense.weight.data.copy_(case.weight)
    dense = dense.to(memory_format=memory)
    adaptive: Any = SparseAdaptiveConv2d.from_dense(dense)
    known, x = observed(case.x), case.x.contiguous(memory_format=memory)
    adaptive.calibration, adaptive.density = calibration, lambda: known
    leaf = x.clone().requires_grad_()
    upstream = dense(x).detach()

    def forward(layer: torch.nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: layer(x))

    def step(layer: torch.nn.Module) -> Callable[[], object]:
        return lambda: torch.autograd.grad(layer(leaf), [leaf, *layer.parameters()], upstream)

    exact = torch.nn.functional.conv2d(x.double(), case.weight.double(), padding=case.problem.kernel // 2)
    for phase, make in (("forward", forward), ("step", step)):
        for impl, layer in (("dense", dense), ("adaptive", adaptive)):
            time = timed(clock, make(layer), scope.repeat)
            if impl == "dense" and phase == "forward":
                adaptive.dense_us = {Phase.FORWARD: time["median_us"]}
            choices = {each.value: choice.reason for each, choice in choices_of(layer).get("", {}).items()}
            yield {
                "workload": case.problem.name, "layer": f"{case.problem.name} {case.pattern} {case.zeros:g}%",
                "phase": phase, "precision": precision, "layout": layout, "impl": impl, "batch": case.problem.images,
                "l2": "warm", "by": "lamina", "pattern": case.pattern, "zeros": case.zeros, "choices": choices,
                "rel_error": run.relative_error([layer(x)], [exact]), **time,
            }  # fmt: skip


def speeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The least and the greatest speed of adaptive layers over dense ones, and what is slower than it may be."""
    time = {(r["layer"], r["phase"], r["precision"], r["layout"], r["impl"]): r["median_us"] for r in rows}
    ratios = {key[:4]: time[*key[:4], "dense"] / us for key, us in time.items() if key[4] == "adaptive"}
    found: dict[str, Any] = {}
    for phase in ("forward", "step"):
        mine = {key: ratio for key, ratio in ratios.items() if key[1] == phase}
        low, high = min(mine, key=mine.__getitem__), max(mine, key=mine.__getitem__)
        found[f"least speed over dense, {phase}"] = {f"{low[0]}, {low[2]} {low[3]}:": round(mine[low], 3)}
        found[f"greatest speed over dense, {phase}"] = {f"{high[0]}, {high[2]} {high[3]}:": round(mine[high], 3)}
    found[f"slower than {LEAST} of dense"] = sum(ratio < LEAST for ratio in ratios.values())
    return found


def main() -> None:
    asked = results.arguments("sparse_layers", scope=tuple(GRIDS))
    scope, rows, summary = GRIDS[asked.scope], [], {}
    for precision in scope.precisions:
        with run.precision_mode(precision):
            constants = calibrated(SCOPES[asked.scope].problems[0], scope, precision)
            summary[f"calibration, {precision}"] = {
                key: float(f"{value:.4g}") for key, value in vars(constants).items()
            }
            every = chain.from_iterable(cases(each, scope, precision) for each in scope.problems)
            for case in (*every, *recorded(scope, precision)):
                mine = [each for layout in LAYOUTS for each in measured(case, scope, constants, precision, layout)]
                rows += mine
                for each in mine:
                    print(
                        precision,
                        each["layer"],
                        each["phase"],
                        each["impl"],
                        round(each["median_us"], 1),
                        each["choices"],
                    )
    summary |= speeds(rows)
    claim = "sparse_layers" if asked.scope == "full" else f"sparse_layers_{asked.scope}"
    print(results.write(claim, scope.device, rows, summary, asked, f"sparse_layers {asked.scope}"))
    for key, value in summary.items():
        print(key, value)


if __name__ == "__main__":
    main()
