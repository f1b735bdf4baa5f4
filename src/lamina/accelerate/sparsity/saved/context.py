"""The context that keeps what a ReLU gave, and what a pooling or dropout made of it, compressed until backward.

A ReLU's own backward pass needs one bit of each element. What other layers save of its result, such as a convolution's
input, is kept without its zeros: exactly (``bitmap``), or as float16 (``ellpack``). Everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, Self, get_args
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from lamina.accelerate.sparsity import functional, reference
from lamina.accelerate.sparsity.config import check_choice
from lamina.accelerate.sparsity.format import EllpackDib
from lamina.accelerate.sparsity.saved import bitmap
from lamina.accelerate.sparsity.saved.bitmap import Bitmap, Form, Mask

HAS_TRITON = find_spec("triton") is not None
if HAS_TRITON:
    from lamina.accelerate.sparsity import ops as sparse_ops
    from lamina.accelerate.sparsity.saved import ops

Kind = Literal["bitmap", "ellpack"]
"""How activations are kept: exactly, or as ELLPACK-DIB, whose values are float16."""

RELUS = frozenset({"relu", "relu_"})
CARRIERS = frozenset({"max_pool2d", "max_pool1d", "dropout", "dropout_", "flatten", "view", "reshape", "contiguous"})
"""Functions that keep zeros zero, by name."""


@dataclass(frozen=True)
class Ellpack:
    """An activation map as ELLPACK-DIB, a channel a row."""

    form: Form
    sparse: EllpackDib

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.sparse.nbytes


Packed = Mask | Bitmap | Ellpack


@dataclass
class Held:
    """Tensors that were saved since the context was entered, and their bytes.

    Attributes:
        tensors: how many were kept in each form; ``dense`` as they were.
        dense_bytes: what they would have taken as they were, each tensor once.
        held_bytes: what they took.
    """

    tensors: dict[str, int] = field(default_factory=dict)
    dense_bytes: int = 0
    held_bytes: int = 0

    def add(self, form: str, dense_bytes: int, held_bytes: int) -> None:
        """Count one tensor."""
        self.tensors[form] = self.tensors.get(form, 0) + 1
        self.dense_bytes += dense_bytes
        self.held_bytes += held_bytes


class SavedActivations:
    """A context in which a model's forward pass saves sparse activations compressed; see `saved_activations`."""

    def __init__(self, kind: Kind = "bitmap", least: int = 4096) -> None:
        check_choice("kind", kind, get_args(Kind))
        self.kind, self.least = kind, least
        self.held = Held()
        self._in_relu = False
        self._sparse: WeakValueDictionary[Any, Tensor] = WeakValueDictionary()
        self._packed = WeakTensorKeyDictionary()
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._watch = _Watch(self)

    def __enter__(self) -> Self:
        self.held = Held()
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        self._watch.__exit__(*error)  # type: ignore[no-untyped-call]
        self._sparse.clear()
        self._packed = WeakTensorKeyDictionary()

    def run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function and remember whether what it gives has a ReLU's zeros."""
        if name in RELUS:
            self._in_relu = True
            try:
                result = function(*args, **kwargs)
            finally:
                self._in_relu = False
            self._sparse[_key(result)] = result
            return result
        result = function(*args, **kwargs)
        tensors = name in CARRIERS and isinstance(result, Tensor) and args and isinstance(args[0], Tensor)
        if tensors and _key(args[0]) in self._sparse:
            self._sparse[_key(result)] = result
        return result

    def _pack(self, x: Tensor) -> Tensor | Packed:
        if x.numel() < self.least or not x.is_floating_point():
            return x
        if self._in_relu:
            return self._smaller(x, ops.mask(x) if _by_kernel(x) else bitmap.mask(x))
        source = self._sparse.get(_key(x))  # alive, so no other tensor can have come to its memory
        if source is None:
            return x
        state = x.stride(), x._version
        before, packed = self._packed.get(source, (None, x))
        if before != state:
            packed = self._smaller(x, self._compressed(x.detach()))
            self._packed[source] = state, packed
        kept: Tensor | Packed = packed
        return kept

    def _smaller(self, x: Tensor, packed: Packed) -> Tensor | Packed:
        dense_bytes = x.numel() * x.itemsize
        if packed.nbytes >= dense_bytes:
            self.held.add("dense", dense_bytes, dense_bytes)
            return x
        self.held.add(type(packed).__name__.lower(), dense_bytes, packed.nbytes)
        return packed

    def _compressed(self, x: Tensor) -> Packed:
        by_kernel = _by_kernel(x)
        if self.kind == "bitmap" or x.dim() < 2:
            return ops.pack(x) if by_kernel else bitmap.pack(x)
        impl: Literal["kernel", "reference"] = "kernel" if by_kernel and x.dtype != torch.float64 else "reference"
        return Ellpack(Form.of(x), functional.compress(_as_map(x), capacity="measure", impl=impl))

    def _unpack(self, held: Tensor | Packed) -> Tensor:
        match held:
            case Mask():
                return ops.unmask(held) if held.bits.is_cuda and HAS_TRITON else bitmap.unmask(held)
            case Bitmap():
                return ops.unpack(held) if held.bits.is_cuda and HAS_TRITON else bitmap.unpack(held)
            case Ellpack():
                return _restored(held)
        return held


class _Watch(TorchFunctionMode):
    """Sees which functions give which tensors."""

    def __init__(self, owner: SavedActivations) -> None:
        super().__init__()
        self.owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.owner.run(getattr(func, "__name__", ""), func, args, kwargs or {})


def saved_activations(kind: Kind = "bitmap", *, least: int = 4096) -> SavedActivations:
    """Keep sparse activations compressed between the forward and the backward pass.

    ::

        with saved_activations("bitmap") as saved:
            loss = model(x)
        loss.backward()
        saved.held.held_bytes

    Args:
        kind: ``bitmap`` keeps activations exactly, so gradients are the same bit by bit; ``ellpack`` as float16 under
            a scale for each map, which rounds what is wider.
        least: elements below which a tensor is not worth it.

    A tensor that its form would not make smaller is kept as it is. Only the forward pass belongs inside. Each tensor
    costs one wait for the device, which alone knows how many non-zeros there are.

    Raises:
        UsageError: an unknown kind.
    """
    return SavedActivations(kind, least)


def _key(x: Tensor) -> tuple[Any, ...]:
    """The same for a tensor and what autograd passes of it to hooks."""
    return x.data_ptr(), tuple(x.shape), x.dtype, x.device


def _by_kernel(x: Tensor) -> bool:
    return HAS_TRITON and x.is_cuda


def _as_map(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], 1, -1)


def _restored(held: Ellpack) -> Tensor:
    y = held.form.empty()
    images, channels = y.shape[:2]
    if HAS_TRITON and y.is_cuda and y.dtype != torch.float64:
        image = torch.zeros_like(_as_map(y))
        return y.copy_(sparse_ops.restore(held.sparse, image).view(y.shape))
    dense = reference.to_dense(held.sparse, y.dtype)
    return y.copy_(dense.view(channels, images, -1).movedim(1, 0).reshape(y.shape))
