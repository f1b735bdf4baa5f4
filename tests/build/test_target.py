"""Targets: a network is traced in the dtype of its parameters, and trained in float32."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.build import Target, from_external
from lamina.build.models.external import External
from lamina.errors import UsageError
from lamina.spec import Input


class Casts(nn.Module):
    """Casts its input itself; ``mixed`` says whether it has a float32 layer too."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, dtype=torch.bfloat16), nn.Linear(4, 5, dtype=torch.bfloat16)
        if mixed:
            self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.bfloat16()).mean((2, 3))
        return self.head(x.to(self.head.weight.dtype))  # type: ignore[no-any-return]


def plain(dtype: torch.dtype, buffer: bool = False) -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5)).to(dtype)
    if buffer:
        network.register_buffer("seen", torch.zeros(1))
    return network


def target(make: Callable[[], nn.Module]) -> Target:
    return from_external("own", lambda: External(make()), (3, 8, 8))


OWN = [
    pytest.param(lambda: plain(torch.float64), id="float64"),
    pytest.param(lambda: plain(torch.bfloat16), id="bfloat16"),
    pytest.param(lambda: plain(torch.float16, buffer=True), id="float16 with a buffer"),
]
TOKENS = Input(shape=(16,))
CASTS = [pytest.param(lambda: Casts(True), id="mixed"), pytest.param(lambda: Casts(False), id="bfloat16")]


@pytest.mark.parametrize("make", [*OWN, *CASTS])
def test_networks_of_any_dtype_have_layers(make: Callable[[], nn.Module]) -> None:
    layers = target(make).resolve(2)
    assert layers[0].layer.kind in ("convolution", "opaque") and layers[-1].output == (2, 5)


@pytest.mark.parametrize("make", OWN)
def test_networks_of_another_dtype_are_in_float32_with_a_note(make: Callable[[], nn.Module]) -> None:
    notes: list[str] = []
    own = target(make)
    torch.manual_seed(0)
    network = own.in_float32(None, notes.append)
    drawn = torch.rand(1)
    assert {one.dtype for one in network.state_dict().values() if one.is_floating_point()} == {torch.float32}
    (note,) = notes
    assert note.startswith("own: its weights are ") and note.endswith(" and are converted to fp32")
    torch.manual_seed(0)
    torch.testing.assert_close(network[0].weight, make()[0].weight.float())  # type: ignore[index]
    assert torch.rand(1) == drawn and network[1].num_batches_tracked == 0  # type: ignore[index]


@pytest.mark.parametrize("make", [*CASTS, pytest.param(lambda: plain(torch.float32), id="float32")])
def test_networks_that_cast_or_are_in_float32_stay_as_they_are(make: Callable[[], nn.Module]) -> None:
    notes: list[str] = []
    network = target(make).in_float32(None, notes.append)
    assert [one.dtype for one in network.parameters()] == [one.dtype for one in make().parameters()] and not notes


@pytest.mark.parametrize("size", [{"x": (16,)}, (-16,), (0,), 16, ("16",), TOKENS, [TOKENS, 99]])
def test_what_is_no_shape_is_refused(size: Any) -> None:
    with pytest.raises(UsageError, match="input_size: expected sizes of at least 1"):
        from_external("own", lambda: External(nn.Linear(16, 4)), size)
