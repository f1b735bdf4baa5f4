"""Every tile that is timed fits, the chosen one comes first, and each is timed with its kernel."""

import pytest
import torch

from benchmarks.ladder import rows_tf32
from benchmarks.ladder.rows import Layer
from benchmarks.ladder.rungs import Time
from lamina.accelerate.common.tiling import SHARED_MEMORY
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.accelerate.methods.circulant.fused_rows.cuda import RowTile, WeightTile
from lamina.testing.cuda_on_cpu import KernelOnCpu


@pytest.mark.parametrize("layer", rows_tf32.TUNED)
def test_timed_tiles_fit_and_the_chosen_one_comes_first(layer: Layer) -> None:
    for problem in rows_tf32.problems(layer).values():
        first, *others = rows_tf32.row_tiles(problem, layer.rows)
        assert first == cuda.row_tile(problem, layer.rows)
        assert first not in others and len(others) >= 2
        assert all(problem.fits(tile) for tile in others)
        first, *others = rows_tf32.weight_tiles(problem, layer.rows)
        assert first == cuda.weight_tile(problem, layer.rows) and first not in others
        assert all(problem.weight_bytes(tile) <= SHARED_MEMORY for tile in others)


def test_each_tile_is_timed_with_its_kernel(cold: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    tile, weight_tile = RowTile(1, 8, 1, item_blocks=2), WeightTile(1, 1, 1, item_blocks=2)
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(rows_tf32, "row_tiles", lambda *_: [tile])
    monkeypatch.setattr(rows_tf32, "weight_tiles", lambda *_: [weight_tile])

    layer = Layer("small", 17, 32, 48, 16, precision="tf32")
    assert layer.moved["step"] == 3 * 4 * 17 * 80
    times = [*rows_tf32.tile_times(layer, cold, torch.device("cpu"))]
    assert [phase for phase, *_ in times] == ["weight_spectra", "forward", "backward_data", "backward_weight"]
