"""The context that keeps what a ReLU gave, and what a pooling or dropout made of it, compressed until backward.

A ReLU's own backward pass needs one bit of each element: in its place one is called that saves no more. What other
layers save of its result, such as a convolution's input, is kept without its zeros: exactly (``bitmap``), or as float16
(``ellpack``). Pooling asks for the sizes of its input alone, and what it saves of places fits into fewer bytes.
Everything else stays as it is.

How many non-zeros a map has only the device knows. They are packed at once into memory for as many as there were in the
pass before and some more, and the map itself stays until the device has told that there was room for all. The host goes
on meanwhile, for at most `AHEAD` maps.

Maps are known by their storage, not by its address, which another map may get: a weak reference to a storage keeps its
identity from being given to another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.operands import HAS_TRITON, transformed
from lamina.accelerate.methods.activation_sparsity import functional, reference
from lamina.accelerate.methods.activation_sparsity.ellpack import ops as ellpack_ops
from lamina.accelerate.training.compressed_activations import bitmap, convolution, pooling, relu
from lamina.accelerate.training.compressed_activations.bitmap import STORED, Bitmap, Form
from lamina.accelerate.training.compressed_activations.forms import (
    Ellpack,
    Kept,
    Narrow,
    Packed,
    Shape,
    has_memory,
    memory,
)
from lamina.accelerate.training.compressed_activations.window import pooling_of
from lamina.accelerate.training.sparsity_monitor.calculator import capturing
from lamina.errors import LaminaError, UsageError

if HAS_TRITON:
    from lamina.accelerate.training.compressed_activations import ops

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
REPLACED = frozenset({"conv2d", "max_pool2d"})
"""Functions of maps that others take the place of, by name, where the kernels compute."""
WATCHED = RELUS | CARRIERS | REPLACED

AHEAD = 4
"""Maps that may wait for their number of non-zeros at a time: layers enough for the device to have work meanwhile."""

SPARE = 32
"""There is room for one non-zero more for each so many that a map had in the pass before."""
GRAPH_SPARE = 4
"""The same for passes in a CUDA graph, which cannot make more room."""

State = tuple[Any, ...]
"""What tells a tensor from all others: its storage, place in it, sizes, strides, type and version."""


@dataclass
class Held:
    """Maps with zeros that were saved since the context was entered, and their bytes.

    Attributes:
        tensors: how many were kept in each form: ``kept`` as they were; a ``mask`` is a ReLU's bits.
        dense_bytes: what they would have taken as they were, each map once, however many layers save it.
        held_bytes: what they took.
    """

    tensors: dict[str, int] = field(default_factory=dict)
    dense_bytes: int = 0
    held_bytes: int = 0


@dataclass(eq=False)
class Later:
    """A map that stays as it is until the device has told how many non-zeros it has, and what is packed of it.

    ``uses`` are the nodes that have yet to ask for it; after the last one, which knows that it is, nothing is left.
    """

    packed: Packed | None
    begun: Bitmap | None = None
    uses: int = 0


@dataclass(frozen=True)
class Waiting:
    """A map of which the device has not told yet; its graph may be gone by then. ``dense`` are its bytes."""

    later: ref[Later]
    packing: ops.Packing
    turn: int
    dense: int


class SavedActivations:
    """A context in which a model's forward pass saves sparse activations compressed; see `saved_activations`."""

    def __init__(self, kind: Kind = "bitmap", least: int = 4096) -> None:
        check_choice("kind", kind, get_args(Kind))
        if not isinstance(least, int) or isinstance(least, bool) or least < 1:
            raise UsageError(f"least: expected a number of elements from 1, got {least!r}")
        self.kind, self.least = kind, least
        self._pack_hook = self._pack
        self._hooks = saved_tensors_hooks(self._pack_hook, self._unpack)
        self._watch = _Watch(self)
        self._waiting: deque[Waiting] = deque()
        # For each map of a pass in turn: how many non-zeros there is room for, in a map of how many bytes.
        self._rooms: dict[int, tuple[int, int]] = {}
        self._counters = ops.Counters(AHEAD + 1) if HAS_TRITON else None
        # Of passes in CUDA graphs: counters for the maps in turn, and what they were packed into.
        self._reserve: dict[int, ops.Counter] = {}
        self._captured: dict[int, ops.Packing] = {}
        self._held = Held()
        self._forget()

    def __enter__(self) -> Self:
        self._settle_all()
        self._hooks.__enter__()
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        self._held, self._turn = Held(), 0
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.__exit__(*error)
        self._forget()

    @property
    def held(self) -> Held:
        """What was kept since the context was entered; waits for the device to tell."""
        self._settle_all()
        return self._held

    def check(self) -> None:
        """Refuse what the last pass of a CUDA graph gave, if a map had more non-zeros than there was room for.

        Only the device knows, so wait for it before. Gradients from such a map are NaN.

        Raises:
            LaminaError: there was not room enough.
        """
        for turn, packing in self._captured.items():
            if packing.told and packing.nonzeros() > packing.room:
                raise LaminaError(
                    f"saved activations: map {turn} has {packing.nonzeros()} non-zeros, and room for {packing.room} in "
                    "its CUDA graph; run a pass, and capture another"
                )

    def _forget(self) -> None:
        self._pooled: Tensor | None = None
        self._places = 0
        self._sparse: dict[int, StorageWeakRef] = {}
        self._noted_places: set[int] = set()
        # By state; the graph alone keeps them alive.
        self._packed: WeakValueDictionary[State, Later] = WeakValueDictionary()
        self._bits: WeakValueDictionary[State, Tensor] = WeakValueDictionary()

    def run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function, or what saves less in its place, and remember whether the result has a ReLU's zeros."""
        # While a graph is being made tensors have no memory.
        if name not in WATCHED or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if name in RELUS:
            result = self._relu(name, function, args, kwargs)
            self._remember(result)
            return result
        if name in REPLACED and args and relu.by_kernel(args[0]):
            result = self._convolved(*args, **kwargs) if name == "conv2d" else self._max_pooled(*args, **kwargs)
            if result is not None:
                return result
        if name in POOLINGS and args and has_memory(args[0]) and args[0].device.type in ("cpu", "cuda"):
            self._pooled = args[0]
            self._places = args[0].shape[-axes:].numel() if (axes := MAX_POOLINGS.get(name)) else 0
        try:
            result = function(*args, **kwargs)
        finally:
            self._pooled = None
        if name in CARRIERS and args and self._knows(args[0]):
            self._remember(result)
        return result

    def _convolved(self, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """A convolution of a map; None if the library's own does."""
        if convolution.splits(x, weight, *args, **kwargs) and self._knows(x) and self._replaces(x):
            return convolution.conv2d(x, weight, *args, **kwargs)
        return None

    def _max_pooled(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """A max-pooling of a map; None if the library's own does."""
        if not self._replaces(x) or (asked := pooling_of(x, *args, **kwargs)) is None:
            return None
        y = pooling.max_pool2d(x, asked)
        self._note("narrow", y.numel())
        self._held.dense_bytes += 8 * y.numel()
        self._note_dense(x)
        if self._knows(x):
            self._remember(y)
        return y

    def _relu(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("input")
        if not self._replaces(x):
            return function(*args, **kwargs)
        inplace = name == "relu_" or (args[1] if len(args) > 1 else kwargs.get("inplace", False))
        found: list[Tensor] = []
        y = relu.relu(x, inplace, found.append)
        (bits,) = found
        self._bits[_state(y)] = bits
        self._note("mask", bits.numel())
        self._note_dense(y)
        return y

    def _replaces(self, x: Any) -> bool:
        """Whether a function of a tensor may be another's: autograd asks this context, and none within, how to save."""
        if not (has_memory(x) and x.requires_grad and x.numel() >= self.least and _packs(x)):
            return False
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        ours = hooks is not None and hooks[0] is self._pack_hook and torch.is_grad_enabled()
        return ours and not transformed()

    def _remember(self, x: Any) -> None:
        if has_memory(x) and (storage := x.untyped_storage())._cdata not in self._sparse:
            self._sparse[storage._cdata] = StorageWeakRef(storage)

    def _knows(self, x: Any) -> bool:
        return has_memory(x) and x.untyped_storage()._cdata in self._sparse

    def _pack(self, x: Tensor) -> Packed | Later:
        # What needs a gradient and was not computed is a parameter.
        if x.numel() < self.least or (x.requires_grad and x.grad_fn is None) or not has_memory(x):
            return Kept.of(x)
        if self._pooled is not None and x.dtype == torch.int64 and self._places:
            return self._noted(x, Narrow.of(x, self._places))
        if not _packs(x):
            return Kept.of(x)
        if self._pooled is not None and x.untyped_storage()._cdata == self._pooled.untyped_storage()._cdata:
            return self._noted(x, Shape(Form.of(x)))
        if x.untyped_storage()._cdata not in self._sparse:
            return Kept.of(x)
        state = _state(x)
        packed = self._packed.get(state)
        if packed is None:
            packed = self._packed[state] = self._begun(x.detach(), self._bits.get(state))
        packed.uses += 1
        return packed

    def _begun(self, x: Tensor, bits: Tensor | None) -> Later:
        """A map without its zeros, as soon as may be; ``bits`` are those of the ReLU that gave it."""
        if self._counters is None or self.kind != "bitmap" or not relu.by_kernel(x):
            packed = self._compressed(x)
            if isinstance(packed, Bitmap) and bits is not None and torch.equal(packed.bits, bits):
                packed = packed._replace(bits=bits, shares_bits=True)
            return Later(self._noted(x, packed if packed.nbytes < x.numel() * x.itemsize else Kept.of(x)))
        self._turn += 1
        if capturing():
            return Later(self._in_graph(x, bits))
        self._settle_told()
        while len(self._waiting) >= AHEAD:
            self._settle()
        packing = ops.Packing(self._counters.take(x.device), self._room(x))
        later = Later(Kept.of(x), packing.begin(x, bits))
        self._waiting.append(Waiting(ref(later), packing, self._turn, x.numel() * x.itemsize))
        self._note_dense(x)
        return later

    def _room(self, x: Tensor) -> int:
        """For how many non-zeros of this turn's map there is room."""
        room, nbytes = self._rooms.get(self._turn, (0, 1))
        return room * x.numel() * x.itemsize // nbytes

    def _in_graph(self, x: Tensor, bits: Tensor | None) -> Packed:
        """A map without its zeros in a pass that is captured."""
        if self._turn not in self._rooms:
            raise UsageError("saved activations: run a pass before capturing one, which tells how much room maps need")
        if not (room := self._room(x)):
            return self._noted(x, Kept.of(x))
        packing = ops.Packing(self._reserve[self._turn], min(room + room // GRAPH_SPARE, x.numel()))
        self._captured[self._turn] = packing
        return self._noted(x, packing.begin(x, bits))

    def _settle_all(self) -> None:
        while self._waiting:
            self._settle()

    def _settle_told(self) -> None:
        """Let go of maps of which the device has told; does not wait."""
        while self._waiting and self._waiting[0].packing.told:
            self._settle()

    def _settle(self) -> None:
        """Let go of the map that has waited longest."""
        waiting = self._waiting.popleft()
        later, nonzeros, nbytes = waiting.later(), waiting.packing.nonzeros(), waiting.packing.nbytes
        # Bytes before memory: a map that its form would not make smaller is not packed.
        smaller = nbytes < waiting.dense
        self._rooms[waiting.turn] = nonzeros + nonzeros // SPARE if smaller else 0, waiting.dense
        if waiting.turn not in self._reserve:
            self._reserve[waiting.turn] = waiting.packing.counter.another()
        if later is not None and (begun := later.begun) is not None:
            kept, later.begun = later.packed, None
            assert isinstance(kept, Kept)
            smaller = smaller and kept.is_as_it_was  # of what was changed the backward pass complains
            if smaller:
                later.packed = waiting.packing.complete(kept.tensor, begun)
        self._note("bitmap" if smaller else "kept", nbytes if smaller else waiting.dense)

    def _noted(self, x: Tensor, packed: Packed) -> Packed:
        self._note(type(packed).__name__.lower(), packed.nbytes)
        self._note_dense(x)
        return packed

    def _note(self, form: str, nbytes: int) -> None:
        self._held.tensors[form] = self._held.tensors.get(form, 0) + 1
        self._held.held_bytes += nbytes

    def _note_dense(self, x: Tensor) -> None:
        place = x.untyped_storage()._cdata
        if place not in self._noted_places:
            self._noted_places.add(place)
            self._held.dense_bytes += memory(x)

    def _compressed(self, x: Tensor) -> Packed:
        by_kernel = relu.by_kernel(x)
        if self.kind == "bitmap" or x.dim() < 2:
            return ops.pack(x) if by_kernel else bitmap.pack(x)
        impl: Literal["kernel", "reference"] = "kernel" if by_kernel and x.dtype != torch.float64 else "reference"
        return Ellpack(Form.of(x), functional.compress(_as_map(x), capacity="measure", impl=impl))

    def _taken(self, later: Later) -> Packed:
        packed = later.packed
        assert packed is not None  # or autograd would have complained
        later.uses -= convolution.is_last_use(torch._C._current_autograd_node())
        if not later.uses:
            later.packed = later.begun = None
        return packed

    def _unpack(self, held: Packed | Later) -> Tensor:
        if self._waiting:
            self._settle_told()
        packed = self._taken(held) if isinstance(held, Later) else held
        match packed:
            case Kept() | Narrow():
                return packed.get()
            case Bitmap():
                return ops.unpack(packed) if relu.by_kernel(packed.bits) else bitmap.unpack(packed)
            case Ellpack():
                return _restored(packed)
            case Shape(form):
                return form.empty()


class Saving(nn.Module):
    """A model whose forward pass is inside a context: what ``torch.cuda.make_graphed_callables`` takes."""

    def __init__(self, model: nn.Module, saved: AbstractContextManager[Any]) -> None:
        super().__init__()
        self.model, self.saved = model, saved

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        with self.saved:
            return self.model(*args, **kwargs)


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

        saved = saved_activations("bitmap")
        for x in batches:
            with saved:
                loss = model(x)
            loss.backward()
        saved.held.held_bytes

    Args:
        kind: ``bitmap`` keeps activations exactly, so gradients are the same bit by bit; ``ellpack`` as float16 under
            a scale for each map, which rounds what is wider.
        least: elements below which a tensor is not worth it.

    A tensor that its form would not make smaller is kept as it is. Only the forward pass belongs inside. On a GPU the
    last maps stay as they are until the backward pass begins, or ``held`` is asked for. A context that is used again
    knows how much room maps took: after a pass as it is, passes may be captured in a CUDA graph, and
    `SavedActivations.check` tells afterwards whether there was room for all. A backward pass complains of tensors that
    were kept as they are and have been changed in place, as it does without this context.

    Where the host is the slower side, it takes the host longer. Then let it launch graphs, after a pass as it is::

        model = torch.cuda.make_graphed_callables(Saving(model, saved), (x,))

    Raises:
        UsageError: an unknown kind, or no number of elements.
    """
    return SavedActivations(kind, least)


def _packs(x: Tensor) -> bool:
    return x.is_floating_point() and x.itemsize in STORED


def _state(x: Tensor) -> State:
    return x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride(), x.dtype, x._version


def _as_map(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], 1, -1)


def _restored(held: Ellpack) -> Tensor:
    y = held.form.empty()
    images, channels = y.shape[:2]
    if HAS_TRITON and y.is_cuda and y.dtype != torch.float64:
        image = torch.zeros_like(_as_map(y))
        return y.copy_(ellpack_ops.from_ellpack(held.sparse, image).view(y.shape))
    dense = reference.to_dense(held.sparse, y.dtype)
    return y.copy_(dense.view(channels, images, -1).movedim(1, 0).reshape(y.shape))
