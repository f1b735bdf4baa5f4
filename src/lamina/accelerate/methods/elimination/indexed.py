"""Base of layers with pruned inputs: the index of the remaining ones, and the tables derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.elimination.config import By, Impl
from lamina.accelerate.methods.elimination.functional import Lookup, lookup
from lamina.errors import UsageError

Index = Tensor | Sequence[int]


class Indexed(nn.Module):
    """A layer with the buffer ``index``, its remaining inputs, and the tables derived from it.

    A state dict holds the index too. Loading one whose index does not fit the layer raises UsageError.
    """

    index: Tensor
    columns: Tensor
    columns_last: Tensor
    moved: Tensor
    _host: tuple[bool, int, int, By]
    _window: tuple[int, int]
    impl: Impl = "gather"

    def _keep(self, index: Index, inputs: int, by: By, taps: int, device: Any) -> None:
        """Register the index on the layer's device, or on the CPU if that is meta."""
        device = "cpu" if torch.device(device or "cpu").type == "meta" else device
        self._window = inputs, taps
        self.register_buffer("index", torch.as_tensor(index, dtype=torch.int64, device=device).clone())
        self._derive(by)

    @torch.no_grad()
    def _derive(self, by: By) -> None:
        at = lookup(self.index, *self._window, by=by)
        for name in ("columns", "columns_last", "moved"):
            self.register_buffer(name, getattr(at, name), persistent=False)
        self._host = at.prefix, at.run, at.inputs, by

    @property
    def at(self) -> Lookup:
        """The remaining inputs, for `functional`."""
        prefix, run, inputs, by = self._host
        return Lookup(self.index, self.columns, self.columns_last, self.moved, prefix, run, inputs, by)

    @property
    def keep(self) -> float:
        """The keep ratio: remaining inputs over all inputs."""
        return len(self.index) / self._host[2]

    def executed(self, phase: str) -> tuple[str, str]:
        """The keep ratio and the implementation; ``auto`` is resolved at each call by the input's sizes and layout."""
        if self.at.whole:
            return "dense", "no input was pruned"
        reason = "resolved at each call" if self.impl == "auto" else "requested"
        return f"eliminated[keep={self.keep:.4g},impl={self.impl}]", reason

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        key, by = prefix + "index", self._host[3]
        if key in state:
            loaded = state[key]
            if tuple(loaded.shape) == tuple(self.index.shape):
                try:
                    lookup(loaded, *self._window, by=by)
                except UsageError as error:
                    raise UsageError(f"{prefix}{error}") from error
        super()._load_from_state_dict(state, prefix, *args)
        self._derive(by)
