"""Tuning keeps the fastest tile, by whatever clock it is given."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.elimination.nn import EliminatedConv1d, EliminatedConv2d, EliminatedLinear
from lamina.accelerate.methods.elimination.tiles import Tile, candidates
from lamina.accelerate.methods.elimination.tuning import DENSE, fastest, nearest_first, sizes, tune, tune_network
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

    times = tune(layer, x, timer, most=4)
    assert len(seen) == 4 and len(times) == 3
    assert layer.tile == seen[2] and layer.impl == "gather"
    assert Tile.unpack(seen[0]) == candidates(20, 40, 64, 4, thrice=True)[0]


def test_where_nothing_runs_nothing_changes() -> None:
    layer = EliminatedLinear.from_dense(nn.Linear(8, 4), [1, 2])

    def timer(call: Callable[[], Any]) -> float:
        raise UnsupportedError("no room")

    with pytest.raises(UsageError, match="room for, got none"):
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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [1, 2, 5], range(8)])
def test_the_fastest_way_stays(kept: list[int], layout: torch.memory_format) -> None:
    layers: list[tuple[Any, tuple[int, ...]]] = [
        (EliminatedLinear.from_dense(nn.Linear(8, 5), kept), (3, 8)),
        (EliminatedConv2d.from_dense(nn.Conv2d(8, 5, 3), kept), (2, 8, 4, 4)),
        (nn.Conv2d(8, 5, 3, padding=1), (2, 8, 4, 4)),
        (nn.Linear(8, 5), (3, 8)),
    ]
    for layer, shape in layers:
        layer = layer.to(memory_format=layout) if len(shape) == 4 else layer
        x = torch.randn(shape)
        x = x.contiguous(memory_format=layout) if len(shape) == 4 else x
        expected = layer(x)
        count = 0

        def timer(call: Callable[[], Any], expected: torch.Tensor = expected) -> float:
            nonlocal count
            torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4)
            count += 1
            return 1 / count

        best, times = fastest(layer, x, timer, most=2)
        torch.testing.assert_close(best(x), expected, rtol=1e-4, atol=1e-4)
        assert list(times) == list(dict.fromkeys(times)) and len(times) == count > 1
        assert (best.impl, best.tile) == list(times)[-1]
        dense, times = fastest(layer, x, lambda call: 0.0, most=1)
        assert isinstance(dense, nn.Linear | nn.Conv2d) and min(times, key=lambda way: times[way])[0] == DENSE


def test_a_network_computes_each_layer_the_fastest_way() -> None:
    twice = nn.Linear(6, 6)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 6), twice, nn.ReLU(), twice, nn.Linear(6, 2))
    model[6].register_forward_hook(lambda *_: None)
    x = torch.randn(2, 3, 4, 4)
    expected = model(x)
    seen: list[int] = []

    def timer(call: Callable[[], Any]) -> float:
        seen.append(call().numel())
        return -float(len(seen))

    ways = tune_network(model, x, timer, most=1)
    assert list(ways) == ["0", "2"] and isinstance(model[2], EliminatedLinear) and type(model[6]) is nn.Linear
    assert set(seen) == {2 * 4 * 2 * 2, 2 * 6}
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="got ReLU"):
        fastest(nn.ReLU(), x, timer)
