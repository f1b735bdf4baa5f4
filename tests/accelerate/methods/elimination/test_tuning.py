"""Tuning keeps the fastest tile, by whatever clock it is given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.elimination.candidates import nearest_first, sizes
from lamina.accelerate.methods.elimination.nn import EliminatedConv1d, EliminatedConv2d, EliminatedLinear
from lamina.accelerate.methods.elimination.tiles import Tile
from lamina.accelerate.methods.elimination.tiles import candidates as tiles_of
from lamina.accelerate.methods.elimination.tuning import fastest, tune, tune_network
from lamina.accelerate.select import DENSE
from lamina.errors import UnsupportedError, UsageError

pytestmark = pytest.mark.usefixtures("where_kernels_run")


def test_the_fastest_tile_stays() -> None:
    layer = EliminatedLinear.from_dense(nn.Linear(96, 40), range(1, 65), impl="gather")
    x = torch.randn(20, 96)
    expected = layer(x)
    seen: list[tuple[int, ...]] = []

    def timer(call: Callable[[], Any]) -> float:
        torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4)
        seen.append(layer.tile)
        if len(seen) == 2:
            raise UnsupportedError("no room")
        return float(abs(len(seen) - 3))

    times = tune(layer, x, timer, max_tiles=4)
    assert len(seen) == 4 and len(times) == 3
    assert layer.tile == seen[2] and layer.impl == "gather"
    assert Tile.unpack(seen[0]) == tiles_of(20, 40, 64, 4, tf32x3=True)[0]


def test_where_nothing_runs_nothing_changes() -> None:
    layer = EliminatedLinear.from_dense(nn.Linear(8, 4), [1, 2])

    def timer(call: Callable[[], Any]) -> float:
        raise UnsupportedError("no room")

    with pytest.raises(UsageError, match="fits the device, got none"):
        tune(layer, torch.zeros(2, 8), timer)
    assert layer.tile == () and layer.impl == "auto"
    with pytest.raises(UsageError, match="got Linear"):
        tune(nn.Linear(2, 2), torch.zeros(2, 2), timer)  # type: ignore[arg-type]


def test_sizes_are_those_of_the_product() -> None:
    conv: Any = EliminatedConv2d.from_dense(nn.Conv2d(6, 5, 3, 2, 1), [0, 3])
    assert sizes(conv, torch.zeros(2, 6, 7, 9)) == (2 * 4 * 5, 5, 18)
    flat: Any = EliminatedConv1d.from_dense(nn.Conv1d(6, 5, 3, padding="same"), [0, 3, 4])
    assert sizes(flat, torch.zeros(2, 6, 7)) == (14, 5, 9)
    assert sizes(EliminatedLinear(8, 5, [1, 2]), torch.zeros(3, 4, 8)) == (12, 5, 2)


def test_the_first_is_the_nearest() -> None:
    tiles = [Tile(64, 64, 32), Tile(16, 16, 16), Tile(64, 128, 32), Tile(64, 64, 64, 4)]
    assert nearest_first(tiles) == [tiles[0], tiles[2], tiles[3], tiles[1]]


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [1, 2, 5]])
def test_the_fastest_implementation_stays(kept: list[int]) -> None:
    layers: list[tuple[Any, tuple[int, ...]]] = [
        (EliminatedLinear.from_dense(nn.Linear(8, 5), kept), (3, 8)),
        (EliminatedConv2d.from_dense(nn.Conv2d(8, 5, 3), kept), (2, 8, 4, 4)),
    ]
    for layer, shape in layers:
        x = torch.randn(shape)
        expected = layer(x)
        for better in (1.0, -1.0):  # each is faster than the one before it, or slower
            count = 0

            def timer(call: Callable[[], Any], expected: torch.Tensor = expected, better: float = better) -> float:
                nonlocal count
                torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4)
                count += 1
                return 1000.0 * 2 ** (-better * count)

            with pytest.warns(DeprecationWarning, match=r"accelerate\.tune"):
                best, selection = fastest(layer, x, timer)
            torch.testing.assert_close(best(x), expected, rtol=1e-4, atol=1e-4)
            assert len(selection.times_us) == count > 1
            assert isinstance(best, type(layer)) == (selection.impl != DENSE) == (better > 0)


def test_a_network_computes_each_layer_by_the_fastest_implementation() -> None:
    model = nn.Sequential(EliminatedLinear.from_dense(nn.Linear(8, 6), [0, 2, 5]), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(3, 8)
    expected = model(x)
    with pytest.warns(DeprecationWarning, match=r"accelerate\.tune"):
        found = tune_network(model, x, lambda call: float(call() is not None))
    assert {*found} == {"0"} and type(model[0]) is nn.Linear
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    with pytest.warns(DeprecationWarning, match="tune"), pytest.raises(UsageError, match="got ReLU"):
        fastest(nn.ReLU(), x, lambda call: 1.0)


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_the_snippet_of_the_page_runs() -> None:
    page = (Path(__file__).parents[4] / "docs/capabilities/elimination.md").read_text(encoding="utf-8")
    (snippet,) = (text for text in page.split("```") if "tuning import" in text)
    layer = EliminatedLinear.from_dense(nn.Linear(8, 6), [0, 2, 5])
    given = {"layer": layer, "model": nn.Sequential(layer), "x": torch.randn(3, 8), "timer": lambda call: 1.0}
    exec(snippet.removeprefix("python"), given)  # what the page says
    assert {*given["chosen"]} == {"0"}  # type: ignore[attr-defined]
