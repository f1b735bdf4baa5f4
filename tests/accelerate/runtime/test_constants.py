"""Constants are made once, and nothing of the caller reaches what makes them."""

import threading

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lamina.accelerate.runtime.constants import constant
from lamina.errors import UsageError


def test_a_constant_is_made_once_for_its_arguments() -> None:
    made: list[int] = []

    @constant
    def ones(size: int) -> Tensor:
        made.append(size)
        return torch.ones(size)

    assert ones(2) is ones(2) and ones(3).shape == (3,)
    assert made == [2, 3]


def test_allocations_and_operators_are_those_of_another_thread() -> None:
    seen: list[str] = []

    class Observer(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    @constant
    def here() -> Tensor:
        return torch.tensor(threading.get_ident())

    with Observer(), torch.inference_mode():
        found = here()
    assert not seen and not found.is_inference()
    assert int(found) != threading.get_ident()


def test_an_error_reaches_the_caller_and_is_not_kept() -> None:
    @constant
    def failing(text: str) -> Tensor:
        raise UsageError(text)

    for text in ("first", "second"):
        with pytest.raises(UsageError, match=text):
            failing(text)


def test_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UsageError, match="before CUDA graph capture"):
        constant(lambda: torch.ones(1))()
