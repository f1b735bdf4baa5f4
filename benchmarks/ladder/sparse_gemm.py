"""Claim: what each step towards the present kernels without zeros is worth.

Conversions, products of single non-zeros and products over united rows of the 512 x 2304 x 12544 convolution at 90 %
zeros, from the first kernels to the present ones; each rung is the one before it and what its idea says. Results are
held to float64. ``smoke`` does a little on the CPU, where there is only the library.

Run: python -m benchmarks.ladder.sparse_gemm full
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import results
from benchmarks.ladder import single as earlier
from benchmarks.ladder.single import Block as Single
from benchmarks.sparse_gemm import SCOPES, Case, Scope, cases, clocks, timed
from lamina import run
from lamina.accelerate.methods.activation_sparsity import ops
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda as compiled
from lamina.accelerate.methods.activation_sparsity.ellpack.cuda import Scan
from lamina.accelerate.methods.activation_sparsity.row_union import ops as living
from lamina.accelerate.methods.activation_sparsity.split_fp16.ops import parts_for
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, convert_tile, nonzero_tile, union_tile

ZEROS = 90
PATTERNS = {"convert": "iid", "nonzero": "iid", "row_union": "channel"}
"""Zeros that each ladder is for."""


@dataclass(frozen=True)
class Rung:
    """A version; ``result`` where it gives the convolution's."""

    ladder: str
    name: str
    idea: str
    call: Callable[[], Any]
    product: bool = True


def rungs(case: Case, ladder: str, kernels: bool) -> Iterator[Rung]:
    """The ladder over a case, from the ground up; without kernels the library's alone."""
    x, window = case.x, case.problem.window
    at, size = ops.turned(case.weight), (x.shape[2], x.shape[3])
    y = F.conv2d(x, case.weight, padding=case.problem.kernel // 2)
    outputs, columns, rows = y.shape[1], y.numel() // y.shape[1], x.shape[1]

    if ladder != "convert":
        dense = partial(F.conv2d, x, case.weight, padding=case.problem.kernel // 2)
        yield Rung(ladder, "dense", "the library", dense)
    if not kernels:
        return
    if ladder == "convert":
        tile, block = convert_tile(rows, columns, 1), compiled.product_block(outputs, columns, x.itemsize)
        scales = ops.scales_of(x, -(-rows // block.panel))
        yield Rung(ladder, "tiles", "tile after tile down the columns", lambda: ops.to_ellpack(x, tile=tile), False)
        words = x.new_empty((1, rows, columns), dtype=torch.int32)
        image, counts, scale = x.flatten(2)[:, :, None], words[:, 0].clone(), scales[:1].clone()
        threads = partial(compiled.fit, image, words, counts, scale, rows, Scan())
        yield Rung(ladder, "threads", "a thread for 16 rows, all read at once", threads, False)
        staged = partial(ops.to_ellpack, x, panel=block.panel)
        yield Rung(ladder, "staged", "panels that are put in order before they are written", staged, False)
        yield Rung(ladder, "scaled", "by a scale that is known", partial(staged, scales), False)
    if ladder == "nonzero":
        whole, tile = ops.to_ellpack(x), nonzero_tile(outputs, columns)
        cached = partial(ops.nonzero_product, at, None, whole, y, size, window, tile)
        yield Rung(ladder, "cached", "weights through the cache", cached)
        for name, idea, weights, single in (
            ("shared", "weights in shared memory, 128 outputs of 48 columns", at, Single(wide=4, each=4)),
            ("outputs", "256 outputs, so that a non-zero is read for twice as many", at, Single(wide=4)),
            ("columns", "192 columns, so that weights are fetched a quarter as often", at, Single()),
            ("halves", "weights of 16 bits, twice as many a read", at.half(), Single(panel=128)),
        ):
            stored, held = compiled.weights(weights, weights.dtype), ops.to_ellpack(x, panel=single.panel)
            call = partial(earlier.product, stored, held, y, size, window, single)
            yield Rung(ladder, name, idea, lambda call=call: (call(), y)[1])  # type: ignore[misc]
        for name, idea, weights in (
            ("four", "four columns of a warp at a time, each turned to banks of its own", at),
            ("tensor", "and weights of 16 bits, unpacked and multiplied by tensor cores", at.half()),
        ):
            block = compiled.product_block(outputs, columns, weights.itemsize)
            stored, held = compiled.weights(weights, weights.dtype), ops.to_ellpack(x, panel=block.panel)
            call = partial(cuda.product, stored, None, held, y, size, window, block)
            yield Rung(ladder, name, idea, lambda call=call: (call(), y)[1])  # type: ignore[misc]
    if ladder == "row_union":
        tile, narrow, of_weights = union_tile(outputs, columns), Tile(64, 64, 32, 4, 2), parts_for(x)[1]
        yield Rung(ladder, "tiles", "lists of tiles", partial(ops.union_product, at, None, x, y, window, tile))
        images = "lists of images, whose living channels are brought side by side"
        yield Rung(ladder, "images", images, partial(living.product, at, None, x, y, window, narrow))
        wide = "128 outputs of 128 columns, so that tensor cores wait less"
        yield Rung(ladder, "wide", wide, partial(living.product, at, None, x, y, window))
        if of_weights == 2:
            half = "activations as one half"
            yield Rung(ladder, "row_union_fp16", half, partial(living.product, at, None, x, y, window, None, (1, 2)))


@torch.no_grad()
def measured(case: Case, ladder: str, scope: Scope, precision: str) -> Iterator[dict[str, Any]]:
    """A row for each rung."""
    clock, _ = clocks(scope)
    exact = F.conv2d(case.x.double(), case.weight.double(), padding=case.problem.kernel // 2)
    for rung in rungs(case, ladder, case.x.is_cuda):
        result: Tensor = rung.call()
        error = run.relative_error([result], [exact]) if rung.product else None
        unchecked = {} if rung.product else {"unchecked": "tests hold formats to the reference word for word"}
        yield {
            "workload": case.problem.name, "layer": f"{case.problem.name} {case.pattern} {case.zeros:g}%",
            "phase": "forward", "precision": precision, "layout": "nchw", "impl": f"{ladder}[rung={rung.name}]",
            "batch": case.problem.images, "l2": "warm", "by": "lamina", "idea": rung.idea, "rel_error": error,
            **unchecked, **timed(clock, rung.call, scope.repeat),
        }  # fmt: skip


def main() -> None:
    asked = results.arguments("ladder.sparse_gemm", scope=("full", "smoke"))
    scope, rows = SCOPES[asked.scope], []
    for precision in scope.precisions:
        with run.precision_mode(precision):
            for ladder, pattern in PATTERNS.items():
                case = next(cases(scope.problems[0], replace(scope, zeros=(ZEROS,)), precision, (pattern,)))
                for each in measured(case, ladder, scope, precision):
                    rows.append(each)
                    print(precision, each["impl"], round(each["median_us"], 1), each["rel_error"], flush=True)
    summary = {
        f"{row['precision']} {row['impl']}": {"us": round(row["median_us"], 1), "idea": row["idea"]} for row in rows
    }
    claim = "ladder_sparse_gemm" + ("" if asked.scope == "full" else f"_{asked.scope}")
    print(results.write(claim, scope.device, rows, summary, asked, f"ladder.sparse_gemm {asked.scope}"))


if __name__ == "__main__":
    main()
