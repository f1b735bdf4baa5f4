"""Properties of devices, and the assumptions where PyTorch does not report them."""

from types import SimpleNamespace

import pytest
import torch

from lamina.accelerate.common.tiling import SHARED_MEMORY
from lamina.accelerate.runtime import target_info as device


def test_shared_memory_is_the_devices_or_the_minimum_where_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.shared_memory(torch.device("cpu")) == SHARED_MEMORY
    properties = {0: SimpleNamespace(shared_memory_per_block_optin=101376), 1: SimpleNamespace()}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda one: properties[one.index])
    device.shared_memory.cache_clear()
    found = [device.shared_memory(torch.device("cuda", index)) for index in properties]
    assert found == [101376, device.MIN_SHARED_MEMORY]
    device.shared_memory.cache_clear()


@pytest.mark.parametrize(
    ("built_for", "capability", "supported"), [("13.0", 9, True), ("13.0", 8, False), (None, 9, False)]
)
def test_only_nvidia_gpus_since_hopper_have_pdl(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, capability: int, supported: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda one: (capability, 0))
    device.supports_pdl.cache_clear()
    assert device.supports_pdl(torch.device("cuda", 0)) is supported
    device.supports_pdl.cache_clear()
