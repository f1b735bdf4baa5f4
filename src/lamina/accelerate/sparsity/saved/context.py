"""The context that keeps what a ReLU gave, and what a pooling or dropout made of it, compressed until backward.

A ReLU's own backward pass needs one bit of each element. What other layers save of its result, such as a convolution's
input, is kept without its zeros: exactly (``bitmap``), or as float16 (``ellpack``). Pooling asks for the sizes of its
input alone, and what it saves of places fits into fewer bytes. Everything else stays as it is.

How many non-zeros a map has only the device knows. The host goes on meanwhile: a map stays as it is until `AHEAD`
others have followed it, by when the device has long told.

Maps are known by their storage, not by its address, which another map may get: a weak reference to a storage keeps its
identity from being given to another.
"""

from __future__ import annotations

from collections import deque
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
from lamina.accelerate.sparsity.saved import bitmap
from lamina.accelerate.sparsity.saved.bitmap import STORED, Bitmap, Form, Mask
from lamina.accelerate.sparsity.saved.forms import Ellpack, Kept, Later, Narrow, Packed, Shape, has_memory, memory
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


MAX_POOLINGS = {"max_pool1d": 1, "max_pool2d": 2}
"""Functions that save where the greatest elements are, by name: how many axes they look along."""
POOLINGS = frozenset({*MAX_POOLINGS, "avg_pool2d", "adaptive_avg_pool2d"})
"""Functions that save their input, and whose derivatives ask for its sizes alone."""

AHEAD = 4
"""Maps that may wait for their number of non-zeros at a time: layers enough for the device to have work meanwhile."""

State = tuple[Any, ...]
"""What tells a tensor from all others: its storage, place in it, sizes, strides, type and version."""


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
        try:
            while self._waiting:
                self._settle()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._in_relu = False
        self._pooled: Tensor | None = None
        self._places = 0
        self._sparse: dict[int, StorageWeakRef] = {}
        self._counted: set[int] = set()
        # By state; the graph alone keeps them alive.
        self._packed: WeakValueDictionary[State, Packed | Later] = WeakValueDictionary()
        self._masks: WeakValueDictionary[State, Mask] = WeakValueDictionary()
        self._counts: dict[State, ops.Counted] = {}
        self._waiting: deque[tuple[Later, ops.Packing, Mask | None]] = deque()

    def run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function and remember whether what it gives has a ReLU's zeros."""
        if torch.compiler.is_compiling():  # a graph is being made, of tensors without memory
            return function(*args, **kwargs)
        self._in_relu = name in RELUS
        if name in POOLINGS and args and has_memory(args[0]) and args[0].device.type in ("cpu", "cuda"):
            self._pooled = args[0]
            self._places = args[0].shape[-axes:].numel() if (axes := MAX_POOLINGS.get(name)) else 0
        try:
            result = function(*args, **kwargs)
        finally:
            self._in_relu, self._pooled = False, None
        if name in RELUS or (name in CARRIERS and args and self._knows(args[0])):
            self._remember(result)
        return result

    def _remember(self, x: Any) -> None:
        if has_memory(x) and not self._knows(x):
            storage = x.untyped_storage()
            self._sparse[storage._cdata] = StorageWeakRef(storage)

    def _knows(self, x: Any) -> bool:
        return has_memory(x) and x.untyped_storage()._cdata in self._sparse

    def _pack(self, x: Tensor) -> Packed | Later:
        if not has_memory(x) or x.numel() < self.least:
            return Kept.of(x)
        if self._pooled is not None and x.dtype == torch.int64 and self._places:
            return self._noted(x, narrow := Narrow.of(x, self._places), narrow.nbytes)
        if not (x.is_floating_point() and x.itemsize in STORED):
            return Kept.of(x)
        if self._pooled is not None and x.untyped_storage()._cdata == self._pooled.untyped_storage()._cdata:
            return self._noted(x, Shape(Form.of(x)), 0)
        state = x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride(), x.dtype, x._version
        if self._in_relu:
            self._masks[state] = mask = self._mask(x, state)
            return self._noted(x, mask, mask.nbytes)
        if not self._knows(x):
            return Kept.of(x)
        packed = self._packed.get(state)
        if packed is None:
            packed = self._packed[state] = self._begun(x, state)
        return packed

    def _mask(self, x: Tensor, state: State) -> Mask:
        if not _by_kernel(x):
            return bitmap.mask(x)
        self._counts[state] = found = ops.counted(x, positive=True)
        return Mask(Form.of(x), found.bits)

    def _begun(self, x: Tensor, state: State) -> Packed | Later:
        """A map without its zeros, as soon as may be."""
        mask = self._masks.get(state)
        if self.kind != "bitmap" or not _by_kernel(x):
            return self._smaller(x, self._compressed(x.detach()), mask)
        # A ReLU's bits are mostly those of its non-zeros, and count them; without them they are counted now.
        found = self._counts.pop(state, None) if mask else None
        if found is None:
            mask, found = None, ops.counted(x.detach())
        later = Later(Kept.of(x))
        self._waiting.append((later, ops.Packing(x.detach(), found), mask))
        while len(self._waiting) > AHEAD:
            self._settle()
        return later

    def _settle(self) -> None:
        """Pack the map that has waited longest."""
        later, packing, mask = self._waiting.popleft()
        kept, nonzeros = later.packed, packing.nonzeros()
        assert isinstance(kept, Kept)
        x = kept.tensor
        if not kept.is_as_it_was:  # which the backward pass complains of
            self._noted(x, kept, kept.nbytes)
        elif nonzeros is None:
            later.packed = self._smaller(x, ops.pack(x), None)
        else:
            # Bytes before memory: a map that its form would not make smaller is not packed.
            size = -(-x.numel() // 8) + 8 * -(-x.numel() // bitmap.BLOCK) + nonzeros * x.itemsize
            if size < x.numel() * x.itemsize:
                later.packed = packing.bitmap(x, nonzeros)
                self._noted(x, later.packed, later.packed.nbytes - (mask.nbytes if mask else 0))
            else:
                self._noted(x, kept, kept.nbytes)

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
            self.held.dense_bytes += memory(x)
        return packed

    def _compressed(self, x: Tensor) -> Packed:
        by_kernel = _by_kernel(x)
        if self.kind == "bitmap" or x.dim() < 2:
            return ops.pack(x) if by_kernel else bitmap.pack(x)
        impl: Literal["kernel", "reference"] = "kernel" if by_kernel and x.dtype != torch.float64 else "reference"
        return Ellpack(Form.of(x), functional.compress(_as_map(x), capacity="measure", impl=impl))

    def _unpack(self, held: Packed | Later) -> Tensor:
        packed = held.packed if isinstance(held, Later) else held
        match packed:
            case Mask():
                return ops.unmask(packed) if _by_kernel(packed.bits) else bitmap.unmask(packed)
            case Bitmap():
                return ops.unpack(packed) if _by_kernel(packed.bits) else bitmap.unpack(packed)
            case Ellpack():
                return _restored(packed)
            case Shape(form):
                return form.empty()
            case Narrow() | Kept():
                return packed.get()


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

    A tensor that its form would not make smaller is kept as it is. Only the forward pass belongs inside. It waits for
    the device to tell how many non-zeros a map has, on a GPU some maps later. A backward pass complains of
    tensors that were kept as they are and have been changed in place, as it does without this context.

    Raises:
        UsageError: an unknown kind, or no number of elements.
    """
    return SavedActivations(kind, least)


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
