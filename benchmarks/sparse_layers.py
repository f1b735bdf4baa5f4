"""Claim: layers that choose whether to leave out zeros are never slower than 0.98 of the dense layer's speed.

Adaptive convolutions, calibrated by their own times at two densities and told the density of their input, against dense
ones: inference and whole steps, over shapes, shares of zeros and patterns, timed in turns. Each row has what was
chosen, and why; and the dense layer's time once more, which says by how much times of one and the same call differ.
Layers are spread over the GPUs there are; each is timed alone on its own.
``smoke`` does a little on the CPU, where all is dense.

Run: python -m benchmarks.sparse_layers full
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.gpus import Rows, on_every_gpu
from benchmarks.interleaved import interleaved
from benchmarks.sparse_gemm import SCOPES, Case, Problem, Scope, cases, clocks, every_case, timed
from lamina import measure, run
from lamina.accelerate.methods.activation_sparsity.cost import Line, Measured, union_density
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d, choices_of
from lamina.accelerate.methods.activation_sparsity.tiles import columns_per_list
from lamina.accelerate.training.sparsity_monitor import Observation
from lamina.accelerate.training.sparsity_monitor.reference import as_matrices, count
from lamina.spec import Phase

LEAST = 0.98
"""Of the dense layer's speed."""
AGAIN = "dense again"
"""The dense layer once more, in each turn."""

LAYOUTS = ("nchw", "nhwc")
BRIEF = measure.Repeat(min_samples=10, min_time_s=0.01, max_time_s=0.02)
LAYERS = (
    Problem("alexnet conv3", 128, 192, 13, 384, 3), Problem("vgg16 conv2_2", 8, 128, 112, 128, 3),
    Problem("vgg16 conv4_2", 32, 512, 28, 512, 3), Problem("resnet conv5", 64, 512, 7, 512, 3),
    Problem("pointwise", 64, 256, 14, 1024, 1), Problem("tiny", 1, 16, 8, 16, 3),
)  # fmt: skip
GRIDS = {
    "full": replace(SCOPES["full"], problems=LAYERS, zeros=(0, 70, 90, 98), repeat=BRIEF),
    "few": replace(SCOPES["few"], problems=LAYERS[:1] + LAYERS[-1:], zeros=(70, 90), repeat=BRIEF),
    "smoke": SCOPES["smoke"],
}
Piece = tuple[Scope, str, str, Problem | None]
"""What a GPU measures at a time: a precision and a layout of one problem, or of those that were recorded."""


def observed(x: Tensor) -> Observation:
    """What the sparsity monitor knows of a map after it has looked at it."""
    matrices = as_matrices(x)
    rows, columns = matrices.shape[1], matrices.shape[0] * matrices.shape[2]
    return Observation.from_words("x", 0, rows, columns, count(matrices).tolist())


def layers(case: Case, layout: str) -> tuple[Any, Any, Tensor]:
    """The dense layer, the adaptive one with its parameters, and the map, in a layout."""
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    dense: Any = case.problem.layer().to(case.weight)
    dense.weight.data.copy_(case.weight)
    dense = dense.to(memory_format=memory)
    return dense, SparseAdaptiveConv2d.from_dense(dense), case.x.contiguous(memory_format=memory)


def data_us(clock: measure.Clock, repeat: measure.Repeat, x: Tensor, layer: Callable[[Tensor], Tensor]) -> float:
    """What the input's gradient takes."""
    leaf = x.detach().requires_grad_()
    stream = clock.stream if isinstance(clock, measure.GraphClock) else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.enable_grad(), torch.cuda.stream(stream):
        y = layer(leaf)
        upstream = torch.randn_like(y)
    return clock.time(partial(torch.autograd.grad, y, leaf, upstream, retain_graph=True), repeat=repeat).median_us


@torch.no_grad()
def calibrated(problem: Problem, scope: Scope, precision: str, layout: str) -> dict[Phase, Measured]:
    """The layer's own times: dense, over independent zeros, and over living channels; of gradients without zeros."""
    clock, _ = clocks(scope)

    def forward(impl: str, pattern: str, zeros: int) -> tuple[float, Observation]:
        case = next(cases(problem, replace(scope, zeros=(zeros,)), precision, (pattern,)))
        dense, adaptive, x = layers(case, layout)
        adaptive.impl = impl
        layer = dense if impl == "dense" else adaptive
        return float(timed(clock, lambda: layer(x), scope.repeat)["median_us"]), observed(case.x)

    dense_us, _ = forward("dense", "iid", 90)
    if scope.device == "cpu":
        return {Phase.FORWARD: Measured(dense_us)}
    points = [forward("nonzero", "iid", zeros) for zeros in (70, 95)]
    nonzero = Line.through(*((seen.density, us) for us, seen in points))
    points = [forward("row_union", "channel", zeros) for zeros in (50, 90)]
    wide = problem.size**2 if columns_per_list(problem.images, problem.size, problem.size, problem.window) else 128
    shares = [(union_density(seen.union_density, wide) or 1.0, us) for us, seen in points]
    union = Line.through(*shares) if shares[0][0] != shares[1][0] else None
    dense, adaptive, x = layers(next(cases(problem, replace(scope, zeros=(0,)), precision, ("iid",))), layout)
    adaptive.impl = "row_union"
    gradient = [data_us(clock, scope.repeat, x, layer.requires_grad_(False)) for layer in (dense, adaptive)]
    return {
        Phase.FORWARD: Measured(dense_us, nonzero, union),
        Phase.BACKWARD_DATA: Measured(gradient[0], None, Line(gradient[1], 0.0)),
    }


def measured(
    case: Case, scope: Scope, calibration: dict[Phase, Measured], precision: str, layout: str
) -> Iterator[dict[str, Any]]:
    """Dense and adaptive, inference and step."""
    clock, _ = clocks(scope)
    dense, adaptive, x = layers(case, layout)
    known = observed(case.x)
    adaptive.calibration, adaptive.density = calibration, lambda: known
    leaf = x.clone().requires_grad_()
    upstream = dense(x).detach()

    def forward(layer: torch.nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: layer(x))

    def step(layer: torch.nn.Module) -> Callable[[], object]:
        return lambda: torch.autograd.grad(layer(leaf), [leaf, *layer.parameters()], upstream)

    exact = torch.nn.functional.conv2d(x.double(), case.weight.double(), padding=case.problem.kernel // 2)
    both = {"dense": dense, "adaptive": adaptive}
    for phase, make in (("forward", forward), ("step", step)):
        timers = {impl: partial(timed, clock, make(layer), scope.repeat) for impl, layer in both.items()}
        times = interleaved(timers | {AGAIN: timers["dense"]})
        for impl, layer in both.items():
            choices = {each.value: choice.reason for each, choice in choices_of(layer).get("", {}).items()}
            yield {
                "workload": case.problem.name, "layer": f"{case.problem.name} {case.pattern} {case.zeros:g}%",
                "phase": phase, "precision": precision, "layout": layout, "impl": impl, "batch": case.problem.images,
                "l2": "warm", "by": "lamina", "pattern": case.pattern, "zeros": case.zeros, "choices": choices,
                "rel_error": run.relative_error([layer(x)], [exact]), "again_us": times[AGAIN]["median_us"],
                **times[impl],
            }  # fmt: skip


def told(calibration: dict[Phase, Measured]) -> dict[str, Any]:
    """The forward pass's calibration for the summary, in microseconds."""
    forward = calibration[Phase.FORWARD]
    lines = {"nonzero": forward.nonzero, "row_union": forward.union}
    found = {name: [round(number, 1) for number in line] for name, line in lines.items() if line}
    return {"dense": round(forward.dense_us, 1), **found}


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
    itself = [row["median_us"] / row["again_us"] for row in rows if row["impl"] == "dense"]
    found[f"dense, slower than {LEAST} of itself"] = sum(min(ratio, 1 / ratio) < LEAST for ratio in itself)
    found["least speed of dense over itself"] = round(min(min(ratio, 1 / ratio) for ratio in itself), 3)
    return found


def measured_piece(piece: Piece) -> Rows:
    """The rows of one piece, each with what was known of its layer's times."""
    scope, precision, layout, problem = piece
    known: dict[Problem, dict[Phase, Measured]] = {}
    rows = []
    with run.precision_mode(precision):
        for case in every_case(problem, scope, precision):
            if case.problem not in known:
                known[case.problem] = calibrated(case.problem, scope, precision, layout)
            mine = known[case.problem]
            rows += [row | {"calibration": told(mine)} for row in measured(case, scope, mine, precision, layout)]
    return rows


def main() -> None:
    asked = results.arguments("sparse_layers", scope=tuple(GRIDS))
    scope = GRIDS[asked.scope]
    pieces: list[Piece] = [(scope, *each) for each in product(scope.precisions, LAYOUTS, scope.pieces)]
    claim = "sparse_layers" if asked.scope == "full" else f"sparse_layers_{asked.scope}"
    rows: Rows = []
    for rows in on_every_gpu(measured_piece, pieces):
        known = {
            f"calibration: {row['workload']}, {row['precision']} {row['layout']}": row["calibration"] for row in rows
        }
        found = known | speeds(rows)
        path = results.write(claim, scope.device, rows, found, asked, f"sparse_layers {asked.scope}")
        print(f"{len(rows)} rows in {path}", flush=True)
    for row in rows:
        print(row["precision"], row["layer"], row["layout"], row["phase"], row["impl"],
              round(row["median_us"], 1), row["choices"].get("forward", ""))  # fmt: skip
    for key, value in found.items():
        print(key, value)


if __name__ == "__main__":
    main()
