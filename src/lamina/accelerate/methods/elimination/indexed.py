"""What layers share that keep an index of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.elimination.config import By
from lamina.accelerate.methods.elimination.functional import Lookup, lookup
from lamina.errors import UsageError

Index = Tensor | Sequence[int]


class Indexed(nn.Module):
    """A layer with the buffer ``index``, the inputs that stay, and what follows from it.

    A state dict holds the index beside the parameters. One that does not fit the layer is refused as it is loaded.
    """

    index: Tensor
    columns: Tensor
    columns_last: Tensor
    moved: Tensor
    _host: tuple[bool, int, int, By]
    _window: tuple[int, int]

    def _keep(self, index: Index, inputs: int, by: By, taps: int, device: Any) -> None:
        """Register the index on its device; a layer without storage has one all the same."""
        device = "cpu" if torch.device(device or "cpu").type == "meta" else device
        self._window = inputs, taps
        places = torch.as_tensor(index, dtype=torch.int64, device=device).clone()
        self.register_buffer("index", places)
        self._derive(by)

    @torch.no_grad()
    def _derive(self, by: By) -> None:
        at = lookup(self.index, *self._window, by=by)
        for name in ("columns", "columns_last", "moved"):
            self.register_buffer(name, getattr(at, name), persistent=False)
        self._host = at.prefix, at.run, at.inputs, by

    @property
    def at(self) -> Lookup:
        """Which inputs stay, as `functional` takes it."""
        prefix, run, inputs, by = self._host
        return Lookup(self.index, self.columns, self.columns_last, self.moved, prefix, run, inputs, by)

    @property
    def keep(self) -> float:
        """The share of inputs that stayed."""
        return len(self.index) / self._host[2]

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        key, by = prefix + "index", self._host[3]
        if key in state:
            given = state[key]
            if tuple(given.shape) == tuple(self.index.shape):
                try:
                    lookup(given, *self._window, by=by)
                except UsageError as error:
                    raise UsageError(f"{prefix}{error}") from error
        super()._load_from_state_dict(state, prefix, *args)
        self._derive(by)
