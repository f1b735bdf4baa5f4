"""The random tensors that a layer draws: recorded in one run, and given to its float64 reference."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lamina.errors import LaminaError

_RESULT_IS_DRAWN = {
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli",
    "bernoulli_", "uniform", "uniform_", "normal", "normal_", "normal_functional", "log_normal", "log_normal_",
    "exponential", "exponential_", "cauchy", "cauchy_", "geometric", "geometric_", "random", "random_",
    "multinomial", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet",
}  # fmt: skip
"""ATen operators whose whole result is random. Those of dropout inside another operation, such as the kernels of
attention, do not return what they drew."""


class UncheckedError(LaminaError):
    """The float64 reference cannot be computed, so that the layer cannot be checked. The message says why."""


class RecordedDraws(TorchDispatchMode):
    """Records the random tensors that operators draw, in order.

    ``missed`` is an operator that drew random numbers and did not return them, or empty.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.missed = device, ""
        self.drawn: list[tuple[str, Tensor]] = []

    @property
    def complete(self) -> bool:
        """Whether every random number was recorded."""
        return bool(self.drawn) and not self.missed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = _state(self.device)
        result = func(*args, **(kwargs or {}))
        tensor = _drawn(func, result)
        if tensor is not None:
            self.drawn.append((_distribution(func), tensor.detach().clone()))
        elif not torch.equal(before, _state(self.device)):
            self.missed = _name(func)
        return result


class ReplayedDraws(TorchDispatchMode):
    """Gives operators the recorded tensors instead of new ones, in the dtype that they ask for.

    Raises:
        UncheckedError: an operator draws another number of elements, or other operators draw.
    """

    def __init__(self, recorded: RecordedDraws) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = iter(recorded.drawn)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensor = _drawn(func, result)
        if tensor is None:
            return result
        name, recorded = next(self.drawn, ("", tensor))
        if name != _distribution(func) or recorded.shape != tensor.shape:
            raise UncheckedError("draws random numbers, others in float64")
        tensor.copy_(recorded)
        if _name(func) == "native_dropout":
            x, probability = args[0], args[1]
            result[0].copy_(x * tensor / (1 - probability) if probability < 1 else torch.zeros_like(x))
        return result


def replayed(recorded: RecordedDraws | None) -> AbstractContextManager[object]:
    """A context that replays what was recorded, if anything was."""
    return nullcontext() if recorded is None else ReplayedDraws(recorded)


def random_states(device: torch.device) -> Callable[[], bool]:
    """A function that puts the random number generators of PyTorch, Python and NumPy back to their state of now.

    It returns whether a layer on the device has drawn from PyTorch's since.
    """
    numpy: Any = sys.modules.get("numpy")
    torch_state, state, numpy_state = _state(device), random.getstate(), numpy.random.get_state() if numpy else None

    def restore() -> bool:
        drawn = not torch.equal(torch_state, _state(device))
        own = len(torch.get_rng_state())
        torch.set_rng_state(torch_state[:own])
        if device.type == "cuda":
            torch.cuda.set_rng_state(torch_state[own:], device)
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
        return drawn

    return restore


def _state(device: torch.device) -> Tensor:
    """The state of PyTorch's generators that a layer on the device may draw from."""
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


def _name(func: Any) -> str:
    return str(getattr(func, "_overloadpacket", func).__name__)


def _distribution(func: Any) -> str:
    """What an operator draws; a dropout mask is a Bernoulli variable."""
    name = _name(func)
    return "bernoulli" if name == "native_dropout" else name.rstrip("_").removesuffix("_like")


def _drawn(func: Any, result: Any) -> Tensor | None:
    """The random tensor among the results of an operator."""
    name = _name(func)
    if name == "native_dropout":
        return result[1]  # type: ignore[no-any-return]
    if name not in _RESULT_IS_DRAWN:
        return None
    return next((leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)), None)
