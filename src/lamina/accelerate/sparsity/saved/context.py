"""The context that keeps what a ReLU gave, and what a pooling or dropout made of it, compressed until backward.

A ReLU's own backward pass needs one bit of each element. What other layers save of its result, such as a convolution's
input, is kept without its zeros: exactly (``bitmap``), or as float16 (``ellpack``). Everything else stays as it is.

Maps are known by their storage, not by its address, which another map may get: a weak reference to a storage keeps its
identity from being given to another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Literal, Self, get_args
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from lamina.accelerate.choices import check_choice
from lamina.accelerate.sparsity import functional, reference
from lamina.accelerate.sparsity.format import EllpackDib
from lamina.accelerate.sparsity.saved import bitmap
from lamina.accelerate.sparsity.saved.bitmap import STORED, Bitmap, Form, Mask
from lamina.errors import UsageError

HAS_TRITON = find_spec("triton") is not None
if HAS_TRITON:
    from lamina.accelerate.sparsity import ops as sparse_ops
    from lamina.accelerate.sparsity.saved import ops

Kind = Literal["bitmap", "ellpack"]
"""How activations are kept: exactly, or as ELLPACK-DIB, whose values are float16."""

RELUS = frozenset({"relu", "relu_"})
CARRIERS = frozenset(
    {"max_pool1d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "local_response_norm"}
    | {"dropout", "dropout_", "dropout2d", "flatten", "reshape", "contiguous"}
)
"""Functions whose results have zeros because their first argument has, by name."""


@dataclass(frozen=True)
class Ellpack:
    """An activation map as ELLPACK-DIB, a channel a row."""

    form: Form
    sparse: EllpackDib

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.sparse.nbytes


@dataclass(frozen=True)
class Kept:
    """A tensor as it is; autograd itself does not see that it was changed in place once hooks have it."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, x: Tensor) -> Kept:
        """A tensor, without its graph, which would hold itself by it."""
        return cls(x.detach(), x._version)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return _memory(self.tensor)

    def get(self) -> Tensor:
        """The tensor.

        Raises:
            UsageError: it is no longer what was saved.
        """
        if self.tensor._version != self.version:
            raise UsageError(
                f"backward: expected a saved tensor {tuple(self.tensor.shape)} as it was at version {self.version}, "
                f"got version {self.tensor._version}; do not change it in place between the passes"
            )
        return self.tensor


Packed = Mask | Bitmap | Ellpack | Kept


@dataclass
class Held:
    """Maps with zeros that were saved since the context was entered, and their bytes.

    Attributes:
        tensors: how many were kept in each form; ``kept`` as they were.
        dense_bytes: what they would have taken as they were, each map once, however many layers save it.
        held_bytes: what they took.
    """

    tensors: dict[str, int] = field(default_factory=dict)
    dense_bytes: int = 0
    held_bytes: int = 0


class SavedActivations:
    """A context in which a model's forward pass saves sparse activations compressed; see `saved_activations`."""

    def __init__(self, kind: Kind = "bitmap", least: int = 4096) -> None:
        check_choice("kind", kind, get_args(Kind))
        if not isinstance(least, int) or isinstance(least, bool) or least < 1:
            raise UsageError(f"least: expected a number of elements from 1, got {least!r}")
        self.kind, self.least = kind, least
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._watch = _Watch(self)
        self._forget()
        self.held = Held()

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        self.held = Held()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.__exit__(*error)
        self._forget()

    def _forget(self) -> None:
        self._in_relu = False
        self._sparse: dict[int, StorageWeakRef] = {}
        self._counted: set[int] = set()
        # By storage, place in it, sizes and version; the graph alone keeps them alive.
        self._packed: WeakValueDictionary[tuple[Any, ...], Packed] = WeakValueDictionary()
        self._masks: WeakValueDictionary[tuple[Any, ...], Mask] = WeakValueDictionary()

    def run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function and remember whether what it gives has a ReLU's zeros."""
        if torch.compiler.is_compiling():  # a graph is being made, of tensors without memory
            return function(*args, **kwargs)
        self._in_relu = name in RELUS
        try:
            result = function(*args, **kwargs)
        finally:
            self._in_relu = False
        if name in RELUS or (name in CARRIERS and args and self._knows(args[0])):
            self._remember(result)
        return result

    def _remember(self, x: Any) -> None:
        if _has_memory(x) and not self._knows(x):
            storage = x.untyped_storage()
            self._sparse[storage._cdata] = StorageWeakRef(storage)

    def _knows(self, x: Any) -> bool:
        return _has_memory(x) and x.untyped_storage()._cdata in self._sparse

    def _pack(self, x: Tensor) -> Packed:
        if not (_has_memory(x) and x.is_floating_point() and x.itemsize in STORED and x.numel() >= self.least):
            return Kept.of(x)
        state = x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride(), x.dtype, x._version
        if self._in_relu:
            mask = ops.mask(x) if _by_kernel(x) else bitmap.mask(x)
            self._masks[state] = mask
            return self._noted(x, mask, mask.nbytes)
        if not self._knows(x):
            return Kept.of(x)
        packed = self._packed.get(state)
        if packed is None:
            packed = self._packed[state] = self._smaller(x, self._compressed(x.detach()), self._masks.get(state))
        return packed

    def _smaller(self, x: Tensor, packed: Packed, mask: Mask | None) -> Packed:
        """What takes less memory: the packed form, which shares its bits with the ReLU's if they are the same, or x."""
        nbytes = packed.nbytes
        if isinstance(packed, Bitmap) and mask and torch.equal(packed.bits, mask.bits):
            packed, nbytes = replace(packed, bits=mask.bits), nbytes - mask.nbytes
        if nbytes < x.numel() * x.itemsize:
            return self._noted(x, packed, nbytes)
        kept = Kept.of(x)
        return self._noted(x, kept, kept.nbytes)

    def _noted(self, x: Tensor, packed: Packed, nbytes: int) -> Packed:
        form, place = type(packed).__name__.lower(), x.untyped_storage()._cdata
        self.held.tensors[form] = self.held.tensors.get(form, 0) + 1
        self.held.held_bytes += nbytes
        if place not in self._counted:
            self._counted.add(place)
            self.held.dense_bytes += _memory(x)
        return packed

    def _compressed(self, x: Tensor) -> Packed:
        by_kernel = _by_kernel(x)
        if self.kind == "bitmap" or x.dim() < 2:
            return ops.pack(x) if by_kernel else bitmap.pack(x)
        impl: Literal["kernel", "reference"] = "kernel" if by_kernel and x.dtype != torch.float64 else "reference"
        return Ellpack(Form.of(x), functional.compress(_as_map(x), capacity="measure", impl=impl))

    def _unpack(self, held: Packed) -> Tensor:
        match held:
            case Mask():
                return ops.unmask(held) if _by_kernel(held.bits) else bitmap.unmask(held)
            case Bitmap():
                return ops.unpack(held) if _by_kernel(held.bits) else bitmap.unpack(held)
            case Ellpack():
                return _restored(held)
            case Kept():
                return held.get()


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

    A tensor that its form would not make smaller is kept as it is. Only the forward pass belongs inside. It waits
    for the device at each tensor, since that alone knows how many non-zeros there are. A backward pass complains of
    tensors that were kept as they are and have been changed in place, as it does without this context.

    Raises:
        UsageError: an unknown kind, or no number of elements.
    """
    return SavedActivations(kind, least)


def _has_memory(x: Any) -> bool:
    """Whether it is a plain tensor with a storage; sparse ones and subclasses have none, or not one alone."""
    return type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided and x.device.type != "meta"


def _memory(x: Tensor) -> int:
    """Bytes that stay allocated for as long as a tensor is held."""
    return x.untyped_storage().nbytes() if _has_memory(x) else 0


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
