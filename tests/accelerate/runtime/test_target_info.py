"""What a device tells, and what is taken for granted where it does not."""

from types import SimpleNamespace

import pytest
import torch

from lamina.accelerate.common.tiling import SHARED
from lamina.accelerate.runtime import target_info as device


def test_shared_memory_is_the_device_s_and_little_where_it_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.shared_memory(torch.device("cpu")) == SHARED
    told = {0: SimpleNamespace(shared_memory_per_block_optin=101376), 1: SimpleNamespace()}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda one: told[one.index])
    device.shared_memory.cache_clear()
    assert [device.shared_memory(torch.device("cuda", index)) for index in told] == [101376, device.LEAST_SHARED]
    device.shared_memory.cache_clear()


@pytest.mark.parametrize(
    ("built_for", "capability", "waits"), [("13.0", 9, True), ("13.0", 8, False), (None, 9, False)]
)
def test_only_nvidia_s_gpus_since_hopper_wait(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, capability: int, waits: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda one: (capability, 0))
    device.can_wait.cache_clear()
    assert device.can_wait(torch.device("cuda", 0)) is waits
    device.can_wait.cache_clear()
