"""Forward passes whose sparse activations are compressed wherever gradients are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lamina.accelerate.training.compressed_activations.context import compressed_activations


def saving(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same forward pass, within one context of `compressed_activations`; without gradients it is left alone."""
    saved = compressed_activations()

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with saved:
            return forward(*args, **kwargs)

    return run


@contextmanager
def compressed(model: nn.Module) -> Iterator[None]:
    """Every forward pass of a model is one of `saving` until the end of this context."""
    own = vars(model).get("forward")
    model.forward = saving(model.forward)
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own
