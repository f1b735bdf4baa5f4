"""Protocols of a traced network; `lamina.build` implements them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from lamina.spec import ResolvedLayer, Shape


class Slot(Protocol):
    """A tensor between layers; ``base`` is the slot whose memory it shares."""

    @property
    def number(self) -> int: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def base(self) -> int | None: ...


class Call(Protocol):
    """One call of a layer; ``inputs`` and ``outputs`` are slot numbers."""

    @property
    def name(self) -> str: ...
    @property
    def resolved(self) -> ResolvedLayer: ...
    @property
    def module(self) -> nn.Module | None: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def weights(self) -> tuple[Tensor, ...]: ...
    def run(self, tensors: Sequence[Tensor], target: Callable[..., Any] | None = None) -> tuple[Tensor, ...]: ...
    def double(self) -> Self: ...


class Trace(Protocol):
    """A network in order of execution."""

    @property
    def calls(self) -> Sequence[Call]: ...
    @property
    def slots(self) -> Sequence[Slot]: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
