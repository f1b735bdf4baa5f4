"""A context that compresses the outputs of ReLUs, and of poolings and dropouts of them, until the backward pass.

The backward pass of a ReLU needs one bit per element: within the context a ReLU is called that saves only these bits.
What other layers save of its output, such as the input of a convolution, is compressed: exactly (``bitmap``), or as
float16 (``ellpack``). Pooling needs the sizes of its input only, and its indices fit into fewer bytes. Everything else
is saved unchanged.

The number of non-zeros of a map is known on the device only. They are packed at once into memory for as many as the
last pass had and some more; the map itself is kept until the device reports that they fitted. The host runs ahead by at
most `MAX_PENDING` maps.

Maps are identified by their storage, not by its address, which may be reused: a weak reference to a storage prevents
its identity from being reused.
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
from lamina.accelerate.training.compressed_activations import bitmap, convolution, pooling, relu
from lamina.accelerate.training.compressed_activations.bitmap import INTEGER_DTYPES, Bitmap, TensorLayout
from lamina.accelerate.training.compressed_activations.formats import (
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
    from lamina.accelerate.methods.activation_sparsity.ellpack import ops as ellpack_ops
    from lamina.accelerate.training.compressed_activations import ops

Kind = Literal["bitmap", "ellpack"]
"""The compression: exact, or ELLPACK-DIB, whose values are float16."""

RELUS = frozenset({"relu", "relu_"})
ZERO_PRESERVING = frozenset(
    {"max_pool1d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "local_response_norm"}
    | {"dropout", "dropout_", "dropout2d", "flatten", "reshape", "contiguous"}
)
"""Functions that preserve the zeros of their first argument, by name."""

MAX_POOLINGS = {"max_pool1d": 1, "max_pool2d": 2}
"""Functions that save the indices of maxima, by name: the number of dimensions they pool over."""
POOLINGS = frozenset({*MAX_POOLINGS, "avg_pool2d", "adaptive_avg_pool2d"})
"""Functions that save their input, although their backward pass needs its sizes only."""
REPLACED = frozenset({"conv2d", "max_pool2d"})
"""Functions of maps that are replaced where the kernels support them, by name."""
INTERCEPTED = RELUS | ZERO_PRESERVING | REPLACED

MAX_PENDING = 4
"""Maps whose number of non-zeros may be pending at a time: enough layers to keep the device busy."""

HEADROOM = 32
"""Capacity is the number of non-zeros in the last pass, plus one for each of this many."""
GRAPH_HEADROOM = 4
"""The same for passes in a CUDA graph, which cannot allocate more."""

State = tuple[Any, ...]
"""Identifies a tensor: its storage, offset in it, sizes, strides, dtype and version."""


@dataclass
class CompressionStatistics:
    """Sparse maps that were saved since the context was entered.

    Attributes:
        tensors: how many, by format: ``kept`` is uncompressed, ``mask`` the bits of a ReLU.
        dense_bytes: their uncompressed size; each map counts once, however many layers save it.
        held_bytes: their compressed size.
    """

    tensors: dict[str, int] = field(default_factory=dict)
    dense_bytes: int = 0
    held_bytes: int = 0


@dataclass(eq=False)
class PendingMap:
    """A map that is kept until the device reports its number of non-zeros, and its packed form.

    ``uses`` counts the autograd nodes that have yet to read it; the last one releases it.
    """

    packed: Packed | None
    begun: Bitmap | None = None
    uses: int = 0


@dataclass(frozen=True)
class Waiting:
    """A map whose number of non-zeros is pending; its graph may be freed first. ``dense`` is its size in bytes."""

    later: ref[PendingMap]
    packing: ops.Packing
    index: int
    dense: int


class CompressedActivations:
    """A context in which a forward pass saves sparse activations compressed; see `compressed_activations`."""

    def __init__(self, kind: Kind = "bitmap", min_elements: int = 4096) -> None:
        check_choice("kind", kind, get_args(Kind))
        if not isinstance(min_elements, int) or isinstance(min_elements, bool) or min_elements < 1:
            raise UsageError(f"min_elements: expected an integer of at least 1, got {min_elements!r}")
        self.kind, self.min_elements = kind, min_elements
        self._pack_hook = self._pack
        self._hooks = saved_tensors_hooks(self._pack_hook, self._unpack)
        self._interceptor = _Interceptor(self)
        self._waiting: deque[Waiting] = deque()
        # For each map of a pass, by its index: the capacity for non-zeros, and the size of the map in bytes.
        self._capacities: dict[int, tuple[int, int]] = {}
        self._counters = ops.Counters(MAX_PENDING + 1) if HAS_TRITON else None
        # For passes in CUDA graphs: the counter and the packing of each map, by its index.
        self._reserve: dict[int, ops.Counter] = {}
        self._captured: dict[int, ops.Packing] = {}
        self._statistics = CompressionStatistics()
        self._reset()

    def __enter__(self) -> Self:
        self._settle_all()
        self._hooks.__enter__()
        self._interceptor.__enter__()  # type: ignore[no-untyped-call]
        self._statistics, self._index = CompressionStatistics(), 0
        return self

    def __exit__(self, *error: Any) -> None:
        self._interceptor.__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.__exit__(*error)
        self._reset()

    @property
    def held(self) -> CompressionStatistics:
        """`statistics` by its former name; deprecated."""
        return self.statistics

    @property
    def statistics(self) -> CompressionStatistics:
        """What was saved since the context was entered; synchronizes with the device."""
        self._settle_all()
        return self._statistics

    def check(self) -> None:
        """Check that all maps of the last replay of a CUDA graph fitted; synchronize with the device before.

        Gradients from a map that did not fit are NaN.

        Raises:
            LaminaError: a map has more non-zeros than its capacity.
        """
        for index, packing in self._captured.items():
            if packing.reported and packing.nonzeros() > packing.capacity:
                raise LaminaError(
                    f"compressed activations: map {index} has {packing.nonzeros()} non-zeros, but its CUDA graph has "
                    f"capacity for {packing.capacity}; run an eager pass, and capture another graph"
                )

    def _reset(self) -> None:
        self._pooled: Tensor | None = None
        self._num_indices = 0
        self._sparse: dict[int, StorageWeakRef] = {}
        self._counted_storages: set[int] = set()
        # By state; only the autograd graph keeps them alive.
        self._packed: WeakValueDictionary[State, PendingMap] = WeakValueDictionary()
        self._bits: WeakValueDictionary[State, Tensor] = WeakValueDictionary()

    def run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function or its replacement, and mark the result if it has the zeros of a ReLU."""
        # Tensors have no memory while torch.compile traces.
        if name not in INTERCEPTED or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if name in RELUS:
            result = self._relu(name, function, args, kwargs)
            self._mark_sparse(result)
            return result
        if name in REPLACED and args and relu.is_supported(args[0]):
            result = self._convolved(*args, **kwargs) if name == "conv2d" else self._max_pooled(*args, **kwargs)
            if result is not None:
                return result
        if name in POOLINGS and args and has_memory(args[0]) and args[0].device.type in ("cpu", "cuda"):
            self._pooled = args[0]
            self._num_indices = args[0].shape[-axes:].numel() if (axes := MAX_POOLINGS.get(name)) else 0
        try:
            result = function(*args, **kwargs)
        finally:
            self._pooled = None
        if name in ZERO_PRESERVING and args and self._is_sparse(args[0]):
            self._mark_sparse(result)
        return result

    def _convolved(self, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """The convolution of a map, or None to call the library's."""
        if convolution.splits(x, weight, *args, **kwargs) and self._is_sparse(x) and self._replaces(x):
            return convolution.conv2d(x, weight, *args, **kwargs)
        return None

    def _max_pooled(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """The max-pooling of a map, or None to call the library's."""
        if not self._replaces(x) or (geometry := pooling_of(x, *args, **kwargs)) is None:
            return None
        y = pooling.max_pool2d(x, geometry)
        self._count("narrow", y.numel())
        self._statistics.dense_bytes += 8 * y.numel()
        self._count_dense(x)
        if self._is_sparse(x):
            self._mark_sparse(y)
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
        self._count("mask", bits.numel())
        self._count_dense(y)
        return y

    def _replaces(self, x: Any) -> bool:
        """Whether a function of ``x`` may be replaced: this context's hooks are the innermost, and gradients are on."""
        if not (has_memory(x) and x.requires_grad and x.numel() >= self.min_elements and _packs(x)):
            return False
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        ours = hooks is not None and hooks[0] is self._pack_hook and torch.is_grad_enabled()
        return ours and not transformed()

    def _mark_sparse(self, x: Any) -> None:
        if has_memory(x) and (storage := x.untyped_storage())._cdata not in self._sparse:
            self._sparse[storage._cdata] = StorageWeakRef(storage)

    def _is_sparse(self, x: Any) -> bool:
        return has_memory(x) and x.untyped_storage()._cdata in self._sparse

    def _pack(self, x: Tensor) -> Packed | PendingMap:
        # What needs a gradient and was not computed is a parameter.
        if x.numel() < self.min_elements or (x.requires_grad and x.grad_fn is None) or not has_memory(x):
            return Kept.of(x)
        if self._pooled is not None and x.dtype == torch.int64 and self._num_indices:
            return self._recorded(x, Narrow.of(x, self._num_indices))
        if not _packs(x):
            return Kept.of(x)
        if self._pooled is not None and x.untyped_storage()._cdata == self._pooled.untyped_storage()._cdata:
            return self._recorded(x, Shape(TensorLayout.of(x)))
        if x.untyped_storage()._cdata not in self._sparse:
            return Kept.of(x)
        state = _state(x)
        packed = self._packed.get(state)
        if packed is None:
            packed = self._packed[state] = self._begin_packing(x.detach(), self._bits.get(state))
        packed.uses += 1
        return packed

    def _begin_packing(self, x: Tensor, bits: Tensor | None) -> PendingMap:
        """Start to compress a map; ``bits`` are those of the ReLU that computed it."""
        if self._counters is None or self.kind != "bitmap" or not relu.is_supported(x):
            packed = self._compressed(x)
            if isinstance(packed, Bitmap) and bits is not None and torch.equal(packed.bits, bits):
                packed = packed._replace(bits=bits, shares_bits=True)
            return PendingMap(self._recorded(x, packed if packed.nbytes < x.numel() * x.itemsize else Kept.of(x)))
        self._index += 1
        if capturing():
            return PendingMap(self._in_graph(x, bits))
        self._settle_ready()
        while len(self._waiting) >= MAX_PENDING:
            self._settle()
        packing = ops.Packing(self._counters.take(x.device), self._capacity(x))
        later = PendingMap(Kept.of(x), packing.begin(x, bits))
        self._waiting.append(Waiting(ref(later), packing, self._index, x.numel() * x.itemsize))
        self._count_dense(x)
        return later

    def _capacity(self, x: Tensor) -> int:
        """The capacity for non-zeros of the present map, from the last pass."""
        capacity, nbytes = self._capacities.get(self._index, (0, 1))
        return capacity * x.numel() * x.itemsize // nbytes

    def _in_graph(self, x: Tensor, bits: Tensor | None) -> Packed:
        """A compressed map in a pass that a CUDA graph captures."""
        if self._index not in self._capacities:
            raise UsageError("compressed activations: expected an eager pass before capture, to measure capacities")
        if not (capacity := self._capacity(x)):
            return self._recorded(x, Kept.of(x))
        packing = ops.Packing(self._reserve[self._index], min(capacity + capacity // GRAPH_HEADROOM, x.numel()))
        self._captured[self._index] = packing
        return self._recorded(x, packing.begin(x, bits))

    def _settle_all(self) -> None:
        while self._waiting:
            self._settle()

    def _settle_ready(self) -> None:
        """Settle the maps whose number of non-zeros has arrived; does not synchronize."""
        while self._waiting and self._waiting[0].packing.reported:
            self._settle()

    def _settle(self) -> None:
        """Settle the oldest pending map."""
        waiting = self._waiting.popleft()
        later, nonzeros, nbytes = waiting.later(), waiting.packing.nonzeros(), waiting.packing.nbytes
        # Size first: a map that would not become smaller is not packed.
        smaller = nbytes < waiting.dense
        self._capacities[waiting.index] = nonzeros + nonzeros // HEADROOM if smaller else 0, waiting.dense
        if waiting.index not in self._reserve:
            self._reserve[waiting.index] = waiting.packing.counter.another()
        if later is not None and (begun := later.begun) is not None:
            kept, later.begun = later.packed, None
            assert isinstance(kept, Kept)
            smaller = smaller and kept.is_unchanged  # a map that was changed in place raises in the backward pass
            if smaller:
                later.packed = waiting.packing.complete(kept.tensor, begun)
        self._count("bitmap" if smaller else "kept", nbytes if smaller else waiting.dense)

    def _recorded(self, x: Tensor, packed: Packed) -> Packed:
        self._count(type(packed).__name__.lower(), packed.nbytes)
        self._count_dense(x)
        return packed

    def _count(self, format: str, nbytes: int) -> None:
        self._statistics.tensors[format] = self._statistics.tensors.get(format, 0) + 1
        self._statistics.held_bytes += nbytes

    def _count_dense(self, x: Tensor) -> None:
        storage = x.untyped_storage()._cdata
        if storage not in self._counted_storages:
            self._counted_storages.add(storage)
            self._statistics.dense_bytes += memory(x)

    def _compressed(self, x: Tensor) -> Packed:
        is_supported = relu.is_supported(x)
        if self.kind == "bitmap" or x.dim() < 2:
            return ops.pack(x) if is_supported else bitmap.pack(x)
        impl: Literal["kernel", "reference"] = "kernel" if is_supported and x.dtype != torch.float64 else "reference"
        return Ellpack(TensorLayout.of(x), functional.compress(_as_map(x), capacity="measure", impl=impl))

    def _release(self, later: PendingMap) -> Packed:
        packed = later.packed
        assert packed is not None  # autograd raises first
        later.uses -= convolution.is_last_use(torch._C._current_autograd_node())
        if not later.uses:
            later.packed = later.begun = None
        return packed

    def _unpack(self, held: Packed | PendingMap) -> Tensor:
        if self._waiting:
            self._settle_ready()
        packed = self._release(held) if isinstance(held, PendingMap) else held
        match packed:
            case Kept() | Narrow():
                return packed.get()
            case Bitmap():
                return ops.unpack(packed) if relu.is_supported(packed.bits) else bitmap.unpack(packed)
            case Ellpack():
                return _restored(packed)
            case Shape(layout):
                return layout.empty()


class CompressedForward(nn.Module):
    """A model whose forward pass runs in a context, for ``torch.cuda.make_graphed_callables``."""

    def __init__(self, model: nn.Module, saved: AbstractContextManager[Any]) -> None:
        super().__init__()
        self.model, self.saved = model, saved

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        with self.saved:
            return self.model(*args, **kwargs)


class _Interceptor(TorchFunctionMode):
    """Intercepts function calls."""

    def __init__(self, owner: CompressedActivations) -> None:
        super().__init__()
        self.owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.owner.run(getattr(func, "__name__", ""), func, args, kwargs or {})


def compressed_activations(kind: Kind = "bitmap", *, min_elements: int = 4096) -> CompressedActivations:
    """Keep sparse activations compressed between the forward and the backward pass.

    ::

        saved = compressed_activations("bitmap")
        for x in batches:
            with saved:
                loss = model(x)
            loss.backward()
        saved.statistics.held_bytes

    Args:
        kind: ``bitmap`` is exact, so that gradients are bitwise identical; ``ellpack`` stores float16 with a scale for
            each map, which rounds wider types.
        min_elements: smaller tensors are not compressed.

    A tensor that would not become smaller is kept uncompressed. Only the forward pass belongs inside. On a GPU the last
    maps stay uncompressed until the backward pass begins, or ``statistics`` is read. A context that is entered again
    reuses the capacities of the last pass: after an eager pass, passes can be captured in a CUDA graph, and
    `CompressedActivations.check` reports afterwards whether all maps fitted. As without this context, the backward pass
    raises if a tensor that was kept uncompressed has been changed in place.

    Compression adds launch overhead. Where a step is CPU-bound, replay CUDA graphs, after an eager pass::

        model = torch.cuda.make_graphed_callables(CompressedForward(model, saved), (x,))

    Raises:
        UsageError: an unknown kind, or ``min_elements`` below 1.
    """
    return CompressedActivations(kind, min_elements)


def _packs(x: Tensor) -> bool:
    return x.is_floating_point() and x.itemsize in INTEGER_DTYPES


def _state(x: Tensor) -> State:
    return x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride(), x.dtype, x._version


def _as_map(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], 1, -1)


def _restored(held: Ellpack) -> Tensor:
    y = held.layout.empty()
    images, channels = y.shape[:2]
    if HAS_TRITON and y.is_cuda and y.dtype != torch.float64:
        image = torch.zeros_like(_as_map(y))
        return y.copy_(ellpack_ops.from_ellpack(held.sparse, image).view(y.shape))
    dense = reference.to_dense(held.sparse, y.dtype)
    return y.copy_(dense.view(channels, images, -1).movedim(1, 0).reshape(y.shape))
