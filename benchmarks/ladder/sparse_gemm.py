"""Claim: the speedup of each optimization of the activation-sparsity kernels.

Conversions, products of single non-zeros and row-union products of the 512 x 2304 x 12544 convolution at 90 % zeros,
from the first kernels to the present ones; each rung adds its idea to the previous one. Results are checked against
float64. ``smoke`` measures a small problem on the CPU, with the library alone.

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
from benchmarks.ladder.single import ProductTile as Single
from benchmarks.sparse_gemm import SCOPES, Case, Scope, cases, clocks, timed
from lamina import run
from lamina.accelerate.methods.activation_sparsity import ops
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda
from lamina.accelerate.methods.activation_sparsity.ellpack import ops as ellpack_ops
from lamina.accelerate.methods.activation_sparsity.ellpack.cuda import ConvertTile
from lamina.accelerate.methods.activation_sparsity.row_union import ops as row_union_ops
from lamina.accelerate.methods.activation_sparsity.row_union.channels import ops as channels_ops
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.ops import split_terms
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, nonzero_tile, row_union_tile, to_ellpack_tile

ZEROS = 90
PATTERNS = {"convert": "iid", "nonzero": "iid", "row_union": "channel"}
"""The pattern of zeros of each ladder."""


@dataclass(frozen=True)
class Rung:
    """A version; ``product`` if it returns the convolution."""

    ladder: str
    name: str
    idea: str
    call: Callable[[], Any]
    product: bool = True


def rungs(case: Case, ladder: str, kernels: bool) -> Iterator[Rung]:
    """The rungs of a ladder, from the first; without ``kernels`` the library alone."""
    x, window = case.x, case.problem.window
    at, size = ops.transposed_weight(case.weight), (x.shape[2], x.shape[3])
    y = F.conv2d(x, case.weight, padding=case.problem.kernel // 2)
    outputs, columns, rows = y.shape[1], y.numel() // y.shape[1], x.shape[1]

    if ladder != "convert":
        dense = partial(F.conv2d, x, case.weight, padding=case.problem.kernel // 2)
        yield Rung(ladder, "dense", "the library", dense)
    if not kernels:
        return
    if ladder == "convert":
        tile, block = to_ellpack_tile(rows, columns, 1), cuda.product_tile(outputs, columns, x.itemsize)
        scales = ellpack_ops.scales_of(x, -(-rows // block.panel))
        tiled = partial(ellpack_ops.to_ellpack, x, tile=tile)
        yield Rung(ladder, "tiles", "a Triton program per tile of columns", tiled, False)
        words = x.new_empty((1, rows, columns), dtype=torch.int32)
        image, counts, scale = x.flatten(2)[:, :, None], words[:, 0].clone(), scales[:1].clone()
        threads = partial(cuda.fit_and_convert, image, words, counts, scale, rows, ConvertTile())
        yield Rung(ladder, "threads", "16 rows per thread, loaded together", threads, False)
        staged = partial(ellpack_ops.to_ellpack, x, panel=block.panel)
        yield Rung(ladder, "staged", "panels staged in shared memory before they are written", staged, False)
        yield Rung(ladder, "scaled", "with a known scale", partial(staged, scales), False)
    if ladder == "nonzero":
        whole, tile = ellpack_ops.to_ellpack(x), nonzero_tile(outputs, columns)
        cached = partial(ellpack_ops.nonzero_product, at, None, whole, y, size, window, tile)
        yield Rung(ladder, "cached", "weights through L1 and L2", cached)
        for name, idea, weights, single in (
            ("shared", "weights in shared memory, 128 outputs x 48", at, Single(warp_columns=4, thread_outputs=4)),
            ("outputs", "256 outputs, which halves the reads of non-zeros", at, Single(warp_columns=4)),
            ("columns", "192 columns, which quarters the reads of weights", at, Single()),
            ("halves", "16-bit weights, two per read", at.half(), Single(panel=128)),
        ):
            stored, held = cuda.weights(weights, weights.dtype), ellpack_ops.to_ellpack(x, panel=single.panel)
            call = partial(earlier.product, stored, held, y, size, window, single)
            yield Rung(ladder, name, idea, lambda call=call: (call(), y)[1])  # type: ignore[misc]
        for name, idea, weights in (
            ("four", "four columns of a warp at a time, each in its own shared-memory banks", at),
            ("tensor", "and 16-bit weights, multiplied by tensor cores", at.half()),
        ):
            blocks = cuda.product_tile(outputs, columns, weights.itemsize)
            stored, held = cuda.weights(weights, weights.dtype), ellpack_ops.to_ellpack(x, panel=blocks.panel)
            multiply = partial(cuda.product, stored, None, held, y, size, window, blocks)
            yield Rung(ladder, name, idea, lambda call=multiply: (call(), y)[1])  # type: ignore[misc]
    if ladder == "row_union":
        tile, narrow, w_terms = row_union_tile(outputs, columns), Tile(64, 64, 32, 4, 2), split_terms(x)[1]
        listed = partial(row_union_ops.row_union_product, at, None, x, y, window, tile)
        yield Rung(ladder, "tiles", "a row list per tile of columns", listed)
        images = "a channel list per image, active channels compacted"
        yield Rung(ladder, "images", images, partial(channels_ops.product, at, None, x, y, window, narrow))
        wide = "128 x 128 tiles, for more reuse by tensor cores"
        yield Rung(ladder, "wide", wide, partial(channels_ops.product, at, None, x, y, window))
        if w_terms == 2:
            rounded = "fp16-rounded activations, one split-fp16 term"
            yield Rung(
                ladder, "row_union_fp16", rounded, partial(channels_ops.product, at, None, x, y, window, None, (1, 2))
            )


@torch.no_grad()
def measured(case: Case, ladder: str, scope: Scope, precision: str) -> Iterator[dict[str, Any]]:
    """A row for each rung."""
    clock, _ = clocks(scope)
    exact = F.conv2d(case.x.double(), case.weight.double(), padding=case.problem.kernel // 2)
    for rung in rungs(case, ladder, case.x.is_cuda):
        result: Tensor = rung.call()
        error = run.relative_error([result], [exact]) if rung.product else None
        unchecked = {} if rung.product else {"unchecked": "tests compare formats with the reference word for word"}
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
