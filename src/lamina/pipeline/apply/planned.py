"""A model that runs in a plan's precision and layout at every call.

The model's class becomes one derived from it, as `torch.nn.utils.parametrize` does, so that names of modules and
parameters stay, and copies run the same way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lamina.accelerate.training.compressed_activations import compressed_activations
from lamina.build import DTYPES
from lamina.errors import UnsupportedError
from lamina.spec.plan import Plan
from lamina.spec.whole_method import compresses

_SAVED = "_saved_activations"


class Planned(nn.Module):
    """Moves inputs to the plan's type and layout, and runs forward passes that train under autocast."""

    planned: Plan

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and all(isinstance(x, Tensor) for x in args):
            args = tuple(map(self._placed, args))
        else:  # takes as long as launching several kernels
            args, kwargs = tree_map(self._placed, (args, kwargs))
        forward = super().forward  # torch.compile cannot trace super() between two context managers
        with self._autocast(args), self._compressed():
            return forward(*args, **kwargs)

    def _placed(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        run = self.planned.run
        if self.planned.goal == "infer" and x.is_floating_point():
            x = x.to(DTYPES[run.precision])
        return x.contiguous(memory_format=torch.channels_last) if run.layout == "nhwc" and x.dim() == 4 else x

    def _autocast(self, args: tuple[Any, ...]) -> AbstractContextManager[object]:
        precision = self.planned.run.precision
        if self.planned.goal == "infer" or precision not in ("bf16", "fp16"):
            return nullcontext()
        device = next((x.device.type for x in args if isinstance(x, Tensor)), "cpu")
        return torch.autocast(device, DTYPES[precision])

    def _compressed(self) -> AbstractContextManager[object]:
        """Of the model's own, whose capacities one pass measures for the next."""
        run = self.planned
        if run.goal == "infer" or not compresses(run.run.method) or not torch.is_grad_enabled():
            return nullcontext()
        if _SAVED not in self.__dict__:
            self.__dict__[_SAVED] = compressed_activations()
        return cast(AbstractContextManager[object], self.__dict__[_SAVED])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled and copied as its own class, derived again from the model's."""
        kind = type(self).__mro__[2]
        state = {name: value for name, value in self.__dict__.items() if name != _SAVED}
        return _restore, (kind, self.planned), state


def run_by(model: nn.Module, plan: Plan) -> nn.Module:
    """The model, which from now on runs in the plan's precision and layout.

    Raises:
        UnsupportedError: it is a TorchScript module, whose class cannot change.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError("expected an nn.Module, got a TorchScript module, whose class cannot change")
    kind = type(model).__mro__[2] if isinstance(model, Planned) else type(model)
    model.__class__ = _derived(kind)
    cast(Planned, model).planned = plan
    return model


def _derived(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"Planned{kind.__name__}", (Planned, kind), {"__module__": kind.__module__})


def _restore(kind: type[nn.Module], plan: Plan) -> nn.Module:
    made = kind.__new__(kind)
    made.__class__ = _derived(kind)
    return made
