"""What reaches each layer when an example goes through a model: the inputs that candidates are timed on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_unflatten

from lamina.accelerate.common.operands import observable
from lamina.errors import UsageError


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer, detached from the graph that it was part of.

    Attributes:
        leaves: arguments and keyword arguments, flattened.
        spec: their structure.
        differentiated: for each leaf, whether the model computes a gradient with respect to it.
        autocast: the type that autocast computes in, if it is on.
    """

    leaves: tuple[Any, ...]
    spec: Any
    differentiated: tuple[bool, ...]
    autocast: torch.dtype | None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the leaves."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Tensor))

    def arguments(self) -> tuple[list[Any], tuple[Any, ...], Mapping[str, Any]]:
        """Fresh leaves that require gradients as in the model, and the arguments made of them."""
        leaves = [
            leaf.detach().requires_grad_(wanted) if isinstance(leaf, Tensor) else leaf
            for leaf, wanted in zip(self.leaves, self.differentiated, strict=True)
        ]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return leaves, args, kwargs

    @property
    def signature(self) -> str:
        """Shapes, strides, types, autocast and the precision of float32: what times depend on, without the values."""
        parts = [
            _form(leaf) + (":grad" if wanted else "") if isinstance(leaf, Tensor) else repr(leaf)
            for leaf, wanted in zip(self.leaves, self.differentiated, strict=True)
        ]
        backends: Any = torch.backends
        fp32 = backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision
        return f"{'; '.join(parts)} autocast={self.autocast} fp32={'/'.join(fp32)}"


def stored(module: nn.Module) -> str:
    """Shapes, strides and types of a module's parameters and buffers: what times depend on, without the values."""
    return "; ".join(map(_form, chain(module.parameters(), module.buffers())))


def _form(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "lazy"
    strides = tuple(tensor.stride()) if tensor.layout == torch.strided else tensor.layout
    return f"{tuple(tensor.shape)}:{strides}:{str(tensor.dtype).removeprefix('torch.')}"


def observe(model: nn.Module, names: Collection[str], example: Any) -> dict[str, LayerCall]:
    """The first call of each named layer in one forward pass of the model, with gradients where grad mode is on.

    Random state and buffers such as running statistics are put back. A call with nested or sparse tensors, with packed
    sequences, or within a transform of `torch.func`, is left out.

    Args:
        model: in the mode, type, device and layout to select for; under autocast if it will run so.
        names: paths of modules.
        example: the model's input, a tuple of inputs, a dict of keyword arguments, or a call.

    Raises:
        UsageError: the model does not take the example.
    """
    seen: dict[str, LayerCall] = {}

    def hook(name: str) -> Any:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            if name in seen:
                return
            leaves, spec = tree_flatten((args, kwargs))
            if any(isinstance(one, PackedSequence) for one in (*args, *kwargs.values())):
                return
            if not all(observable(leaf) for leaf in leaves if isinstance(leaf, Tensor)):
                return
            wanted = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves]
            kept = tuple(leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves)
            seen[name] = LayerCall(kept, spec, tuple(wanted), _autocast(leaves))

        return before

    modules = {name: model.get_submodule(name) for name in names}
    handles = [
        module.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, module in modules.items()
        if not isinstance(module, torch.jit.ScriptModule)  # which takes no hooks
    ]
    args, kwargs = as_arguments(example)
    try:
        with unchanged(model, example), torch.compiler.set_stance("force_eager"):  # which runs every hook
            model(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        raise UsageError(f"example: the model does not take it: {type(error).__name__}: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    return seen


@contextmanager
def unchanged(model: nn.Module, example: Any) -> Iterator[None]:
    """Put random state and the model's buffers, such as running statistics, back at the end."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    leaves = tree_flatten(as_arguments(example))[0]
    devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        # Cast weights in it keep gradient nodes of this stream alive, which a CUDA graph cannot capture on another.
        torch.clear_autocast_cache()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffers[name].shape == buffer.shape:  # a forward pass may make or resize some
                    buffer.copy_(buffers[name])


def as_arguments(example: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and keyword arguments of an example: a tensor, a tuple or list, a dict of keywords, or a call."""
    if isinstance(example, LayerCall):
        _, args, kwargs = example.arguments()
        return args, kwargs
    if isinstance(example, Mapping):
        return (), {str(name): value for name, value in example.items()}
    return (tuple(example), {}) if isinstance(example, tuple | list) else ((example,), {})


def _autocast(leaves: Collection[Any]) -> torch.dtype | None:
    device = next((leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)), "cpu")
    if device == "meta":
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
