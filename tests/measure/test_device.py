"""Which device is meant."""

import pytest
import torch

from lamina.errors import MissingError, UsageError
from lamina.measure.device import cpu_model, lost, name_of, resolve


def test_the_cpu_is_one_device() -> None:
    assert resolve("cpu") == resolve("cpu:0") == resolve(torch.device("cpu")) == torch.device("cpu")
    assert name_of(torch.device("cpu")) == cpu_model() != ""


@pytest.mark.parametrize("name", ["gpu", "meta", "", "cuda:x"])
def test_an_invalid_device_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="expected a"):
        resolve(name)


def test_an_absent_gpu_raises_missing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingError, match="use device 'cpu'"):
        resolve("cuda")


def test_an_index_is_filled_in_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve("cuda") == torch.device("cuda", 1)
    assert resolve("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(MissingError, match=r"device 2, found 2"):
        resolve("cuda:2")


def test_only_an_error_that_stays_makes_a_device_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [RuntimeError("CUDA out of memory")]

    def synchronize(device: torch.device) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert lost(torch.device("cpu")) is None and lost(torch.device("cuda", 0)) is None
    errors += [RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ...")] * 2
    assert lost(torch.device("cuda", 0)) == "CUDA error: device-side assert triggered"
