"""The plan of a walk covers every tensor and shares memory."""

import pytest
import torch

from lamina.build import trace
from lamina.build.models import create
from lamina.run import memory_plan


@pytest.mark.parametrize("backward", [False, True])
def test_memory_plan_reuses_and_covers_every_tensor(backward: bool) -> None:
    found = trace(create("vgg11_cifar"), torch.randn(2, 3, 32, 32))
    made = memory_plan(found, backward)
    own = [slot.number for slot in found.slots if slot.base is None and slot.number not in found.inputs]
    assert all(f"value {number}" in made.chunk_of for number in own)
    assert made.planned_bytes < 0.7 * made.separate_bytes
