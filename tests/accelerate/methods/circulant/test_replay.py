"""Layers replayed in C++ equal the same layers in Python, bit by bit, forward and backward."""

from typing import Any

import pytest
import torch

from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.runtime import launch_cache

from .test_launch_cache import LAYERS, output, step

pytestmark = pytest.mark.usefixtures("where_kernels_run")
CALLS = 4


@pytest.mark.parametrize("impl", ["kernel", "materialized"])
@pytest.mark.parametrize("name", LAYERS)
def test_replayed_steps_equal_those_of_python(
    name: str, impl: Impl, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = LAYERS[name]
    layer = make(impl)
    for _ in range(CALLS):
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape)
        x = torch.randn(shape)
        ours = step(layer, x)
        with monkeypatch.context() as context:
            context.setattr(launch_cache, "recording", lambda: True)
            plain = step(layer, x)
        assert all(map(torch.equal, ours, plain))
    node = output(layer, x.requires_grad_()).grad_fn
    while node is not None and not node.name().startswith("Circulant"):
        node = node.next_functions[0][0] if node.next_functions else None
    assert node is not None, "expected a node of the extension in autograd's graph"


def test_autocast_and_precision_are_in_the_key(native: Any) -> None:
    make, shape = LAYERS["linear"]
    layer, x = make("kernel"), torch.randn(shape)
    with torch.no_grad():
        for _ in range(CALLS):
            with torch.autocast(x.device.type, torch.float16):
                assert output(layer, x).dtype == torch.float16
            assert output(layer, x).dtype == torch.float32
