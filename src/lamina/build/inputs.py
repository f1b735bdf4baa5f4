"""Inputs that a user names or makes: by keyword, of other dtypes, or nested in lists and dicts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lamina.build.network import DTYPES
from lamina.errors import UsageError, nearest
from lamina.spec import Input

Arrange = Callable[[Sequence[Any]], tuple[Sequence[Any], Mapping[str, Any]]]
"""From the tensors of a call to its arguments and keyword arguments."""

_TENSOR = Tensor  # in place of each: a class, which copies of a template share


@dataclass(frozen=True)
class Made:
    """Inputs that a function makes for a batch size: its tensors, in order, and how a network is called with them.

    The function returns a tensor, a tuple or list of arguments, or a dict of keyword arguments; lists and dicts within
    them, and values that are no tensors, stay as they are.
    """

    function: Callable[[int], Any]
    _templates: dict[int, tuple[list[Any], Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Leaves and structure by batch size, from `tensors`: a forward pass, which may be traced, makes none."""

    def tensors(self, batch: int) -> list[Tensor]:
        """The tensors of a call."""
        leaves, structure = self._leaves(batch)
        template = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._templates.setdefault(batch, (template, structure))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def adapt(self, module: nn.Module) -> nn.Module:
        """The network, called with these tensors alone."""
        one = len(self.tensors(1))

        def arrange(tensors: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
            # Where a list has an entry for each sample, the number of tensors is a multiple of that of one sample.
            batch = max(1, len(tensors) // max(1, one))
            if batch not in self._templates:
                self.tensors(batch)
            leaves, structure = self._templates[batch]
            given = iter(tensors)
            values = [next(given) if leaf is _TENSOR else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(values, structure)
            return args, kwargs

        return rearranged(module, arrange)

    def _leaves(self, batch: int) -> tuple[list[Any], Any]:
        try:
            made = self.function(batch)
        except Exception as error:
            raise UsageError(f"--input-fn: for a batch of {batch} it raised {type(error).__name__}: {error}") from error
        if isinstance(made, Mapping):
            return tree_flatten(((), dict(made)))
        return tree_flatten((tuple(made) if isinstance(made, tuple | list) else (made,), {}))


def named(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """The network, called with one tensor for each name: by position where the names are its first parameters."""
    positional, _, variadic = _parameters(module)
    if positional[: len(names)] == [*names] or (not positional and Parameter.VAR_POSITIONAL in variadic):
        return module
    return rearranged(module, lambda tensors: ((), dict(zip(names, tensors, strict=True))))


def require_names(module: nn.Module, names: Sequence[str]) -> None:
    """Refuse names of inputs that the network does not have.

    Raises:
        UsageError: naming one, and those that it has.
    """
    positional, keywords, variadic = _parameters(module)
    for name in names:
        if not variadic and name not in (*positional, *keywords):
            hint = nearest(name, [*positional, *keywords])
            raise UsageError(f"--input: the forward pass of {type(module).__name__} has no input {name!r}: {hint}")


def _parameters(module: nn.Module) -> tuple[list[str], list[str], set[Any]]:
    """The names that a forward pass takes by position, those by keyword only, and the kinds ``*args``, ``**kwargs``."""
    known = inspect.signature(module.forward).parameters.values()
    kinds = {one.kind for one in known}
    positional = [one.name for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    keywords = [one.name for one in known if one.kind is one.KEYWORD_ONLY]
    return positional, keywords, kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}


def rearranged(module: nn.Module, arrange: Arrange) -> nn.Module:
    """The network itself, whose ``forward`` takes tensors and arranges them; its parts keep their names."""
    module.forward = partial(_call, module.forward, arrange)
    return module


def _call(forward: Callable[..., Any], arrange: Arrange, *tensors: Any) -> Any:
    args, kwargs = arrange(tensors)
    return forward(*args, **kwargs)


def in_range(inputs: Sequence[Input], module: nn.Module) -> tuple[Input, ...]:
    """The inputs, with indices below the size of the smallest embedding where no vocabulary is given."""
    sizes = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    least = min(sizes, default=2)
    return tuple(
        one.model_copy(update={"vocabulary": min(least, torch.iinfo(dtype_of(one, "fp32")).max + 1)})
        if one.content == "indices" and one.vocabulary is None
        else one
        for one in inputs
    )


def dtype_of(source: Input, precision: str) -> torch.dtype:
    """The dtype of an input: its own, int64 for other indices, or that of the precision."""
    if source.dtype is not None:
        return getattr(torch, source.dtype)  # type: ignore[no-any-return]
    return torch.int64 if source.content == "indices" else DTYPES[precision]
