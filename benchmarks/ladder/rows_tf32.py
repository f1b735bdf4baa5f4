"""Claim: what keeping spectra on the chip is worth in block-circulant linear layers of many rows, in TF32.

Rungs and phases as in `rows`, for the float32 layers of an MLP, of a vision transformer and of GPT-2. Then the kernels
alone, with the tile that they choose first and with others: rows in both directions, and weight gradients. A minute.

Run: python -m benchmarks.ladder.rows_tf32
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial

import torch

from benchmarks import results
from benchmarks.gpus import Rows, shown
from benchmarks.ladder.rows import Layer, circulant, measured
from benchmarks.ladder.rungs import Time, beside_predictions, cold_graphs
from lamina import measure
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.accelerate.methods.circulant.fused_rows.cuda import FusedRows, RowSteps, RowTile, WeightTile
from lamina.accelerate.runtime.compile_ahead import compile_ahead
from lamina.accelerate.runtime.nvrtc import compiled, definitions
from lamina.run import precision_mode

Layers = tuple[Layer, ...]

LAYERS: Layers = (
    Layer("mlp up", 2048, 1024, 4096, precision="tf32"),
    Layer("mlp down", 2048, 4096, 1024, precision="tf32"),
    Layer("vit-b up", 6304, 768, 3072, precision="tf32"),
    Layer("vit-b down", 6304, 3072, 768, precision="tf32"),
    Layer("vit-b qkv", 6304, 768, 2304, precision="tf32"),
    Layer("gpt2 up", 8192, 768, 3072, precision="tf32"),
)
TUNED: Layers = (LAYERS[0], LAYERS[2])
"""The layers whose kernels are timed with several tiles; input gradients are the products of layers that narrow."""

ROW_TILES = (
    RowTile(8, 16, 2, 2, item_blocks=2),
    RowTile(8, 16, 2, 1, item_blocks=2),
    RowTile(8, 8, 2, 1, item_blocks=2, staged=True),
    RowTile(8, 16, 1, 1, item_blocks=2, staged=True, prefetch=True, rows_ahead=True),
    RowTile(8, 16, 1, 1, item_blocks=2, prefetch=True, rows_ahead=True),
    RowTile(8, 16, 2, 1, item_blocks=2, shared_spectra=True),
    RowTile(4, 8, 3, 1, item_blocks=2, prefetch=True),
    RowTile(4, 8, 2, 1, item_blocks=2, staged=True, prefetch=True),
    RowTile(16, 16, 1, 1, item_blocks=2, prefetch=True),
    RowTile(16, 32, 1, 1, item_blocks=2, prefetch=True),
    RowTile(16, 16, 1, 1, item_blocks=2, staged=True, prefetch=True),
)
WEIGHT_TILES = (
    WeightTile(8, 2, 4, item_blocks=2),
    WeightTile(16, 2, 4, item_blocks=2),
    WeightTile(8, 2, 3, item_blocks=2),
    WeightTile(16, 2, 3, item_blocks=2),
    WeightTile(16, 2, 2, item_blocks=2),
    WeightTile(16, 1, 4, item_blocks=2),
)
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.08)


def problems(layer: Layer) -> dict[str, FusedRows]:
    """The products of a layer by phase."""
    p, q = layer.outputs // layer.block_size, layer.inputs // layer.block_size
    forward, backward = (FusedRows(layer.block_size, *sizes, layer.dtype) for sizes in ((q, p), (p, q)))
    return {"forward": forward, "backward_data": backward}


def row_tiles(problem: FusedRows, rows: int) -> list[RowTile]:
    """The chosen tile, and others that fit and hold all outputs where these take the memory of inputs."""
    chosen = cuda.row_tile(problem, rows)
    others = [
        tile for tile in ROW_TILES
        if tile != chosen and problem.fits(tile)
        and not (tile.shared_spectra and tile.chunk < problem.out_blocks)
        and (tile.splits - 1) * tile.chunk < problem.out_blocks
    ]  # fmt: skip
    return others if chosen is None else [chosen, *others]


def weight_tiles(problem: FusedRows, rows: int) -> list[WeightTile]:
    """The chosen tile and others; the output blocks of ``problem`` are of the wider rows."""
    chosen = cuda.weight_tile(problem, rows)
    return [chosen, *(tile for tile in WEIGHT_TILES if tile != chosen)]


def compile_tiles() -> None:
    """Compile the kernels of rows and of weight gradients with all tiles that are timed, in threads."""
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability())
    asked: list[tuple[str, Mapping[str, int]]] = []
    for layer in LAYERS:
        tiles = None if layer in TUNED else 1
        for problem in problems(layer).values():
            chosen = row_tiles(problem, layer.rows)[:tiles]
            asked += [("rows", problem.row_macros(tile, RowSteps(), None, False)) for tile in chosen]
        wide = max(problems(layer).values(), key=lambda problem: problem.out_blocks)
        of_weights = weight_tiles(wide, layer.rows)[:tiles]
        asked += [("weight_gradient", wide.weight_macros(tile, None, False)) for tile in of_weights]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: compiled(cuda.source(one[0]), architecture, definitions(one[1])), asked))


def tile_times(layer: Layer, time: Time, device: torch.device) -> Iterator[tuple[str, str, float]]:
    """A phase, a tile and microseconds of its kernel alone; the chosen tile of each phase comes first."""
    k, p, q = layer.block_size, layer.outputs // layer.block_size, layer.inputs // layer.block_size
    x, dy = (torch.randn(layer.rows, width, device=device) for width in (layer.inputs, layer.outputs))
    y, dx, weight = torch.empty_like(dy), torch.empty_like(x), torch.randn(p, q, k, device=device)
    dw, spectra = torch.empty_like(weight), cuda.weight_spectra(weight, torch.float32)
    yield "weight_spectra", "", time(lambda: cuda.weight_spectra(weight, torch.float32)).median_us
    of_phase = {"forward": (x, spectra[0], y), "backward_data": (dy, spectra[1], dx)}
    for phase, problem in problems(layer).items():
        source, words, target = of_phase[phase]
        for tile in row_tiles(problem, layer.rows):
            call = partial(cuda.run_rows, source, words, None, target, k, tile)
            yield phase, str(astuple(tile)), time(call).median_us
    wide = max(problems(layer).values(), key=lambda problem: problem.out_blocks)
    for weight_tile in weight_tiles(wide, layer.rows):
        call = partial(cuda.run_weight_gradient, dy, x, dw, weight_tile)
        yield "backward_weight", str(astuple(weight_tile)), time(call).median_us


def main() -> None:
    asked, device = results.arguments("ladder.rows_tf32"), torch.device("cuda")
    rows: Rows = []
    summary: dict[str, dict[str, float]] = {}
    with precision_mode("tf32"), cold_graphs(device) as (time, copy_gbs):
        with compile_ahead():
            for layer in LAYERS:
                x, dy = (torch.zeros(layer.rows, width, device=device) for width in (layer.inputs, layer.outputs))
                blocks = layer.outputs // layer.block_size, layer.inputs // layer.block_size
                circulant("kernel", x, torch.zeros(*blocks, layer.block_size, device=device), dy)["step"]()
        compile_tiles()
        for layer in LAYERS:
            found = measured(layer, time, copy_gbs, device)
            rows += shown(found, ("layer", "phase", "impl", "median_us", "predicted_us", "rel_error"))
        summary |= beside_predictions(rows, "layer", "phase")
        for layer in TUNED:
            for phase, tile, median_us in tile_times(layer, time, device):
                print(layer.name, phase, tile, round(median_us, 1), flush=True)
                summary.setdefault(f"{layer.name} {phase} by tile, us", {})[tile or "all"] = round(median_us, 1)
    print(results.write("ladder_rows_tf32", "cuda", rows, summary, asked, "ladder.rows_tf32"))


if __name__ == "__main__":
    main()
