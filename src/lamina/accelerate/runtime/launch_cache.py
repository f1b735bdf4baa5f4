"""The launch cache: replays what a function of tensors launched before, without running its Python again.

Checking operands, choosing tiles and laying out arguments takes the CPU many times as long as a GPU takes for a small
layer. All of it follows from sizes, dtypes and settings. So the operators that a function calls and the kernels that
it launches are recorded once, as a launch plan, with the positions of its tensors' addresses among the arguments.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lamina.accelerate.common.operands import HAS_TRITON
from lamina.accelerate.runtime.bounded_cache import BoundedCache
from lamina.accelerate.runtime.private_apis import supported

if HAS_TRITON:
    from lamina.accelerate.runtime.triton_ops import precision

STREAM = object()
"""Placeholder among the arguments of a launch: PyTorch's current stream."""

MAX_PLANS = 2048
"""Entries of the cache; the oldest is evicted first."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_aten = torch.ops.aten
_EMPTY = {_aten.new_empty.default, _aten.new_empty_strided.default, _aten.empty.memory_format}


def cached_launches(function: _Function) -> _Function:
    """Record the function at its second call with the same key and replay its launch plan from then on.

    The key holds the shapes, strides, dtypes, alignments and devices of the tensors, all other arguments, the precision
    of float32 products and whether autocast is on. With versions of PyTorch or Triton that were not tested, the
    function runs every time; see `private_apis`.

    Args:
        function: of tensors and hashable arguments, to a tensor or a tuple of tensors. What it does must follow from
            the key; call `clear` after a change of anything else. Tensors that it keeps between calls are never
            replaced. It launches kernels through `launch` and `nvrtc` only.
    """

    @wraps(function)
    def call(*args: Any) -> Any:
        tensors = [each for each in args if isinstance(each, Tensor)]
        if recording() or not is_current_device(tensors[0].device) or not supported():
            return function(*args)
        autocast = torch.is_autocast_enabled(tensors[0].device.type)  # operators act on it when they are replayed
        key = (function, precision(), autocast, *[_layout(each) if isinstance(each, Tensor) else each for each in args])
        found = _plans.get(key)
        if isinstance(found, LaunchPlan):
            return found(tensors)
        if _suspended:
            return function(*args)
        if found is None:  # a single call is not worth a recording
            _plans.put(key, True)
        if not found:
            return function(*args)
        result, recorder = record(function, args)
        _plans.put(key, recorder.plan(tensors, result) or False)
        for each in on_plan:
            each()
        return result

    return cast(_Function, call)


def clear() -> None:
    """Remove all launch plans: something that they were recorded with has changed, such as the choice of tiles."""
    _plans.clear()
    for each in caches:
        each.clear()


@contextmanager
def suspended() -> Iterator[None]:
    """Make no plan within it, since kernels may not be launched there: a plan would repeat what is missing.

    At its end all plans are removed, and with them the notes of functions that no plan was made of.
    """
    global _suspended
    _suspended = True
    try:
        yield
    finally:
        _suspended = False
        clear()


def is_suspended() -> bool:
    """Whether no plan is made."""
    return _suspended


def record_launch(
    function: Callable[..., Any], *args: Any, addresses: bool, kernel: KernelLaunch | None = None
) -> None:
    """Add a launch to the plan under recording, if any: a replay calls ``function(*args)``.

    With ``addresses``, the function takes the addresses of tensors in their place. ``kernel`` is the same launch for
    the CUDA driver.
    """
    recorder = _local.recorder
    if recorder is not None and not recorder.in_operator:
        recorder.steps.append(Recording(function, args, None, True, addresses, kernel))


@contextmanager
def unrecorded() -> Iterator[None]:
    """Leave operators out of the plan under recording: those by which a launch is interpreted."""
    recorder = _local.recorder
    if recorder is not None:
        recorder.paused = True
    try:
        yield
    finally:
        if recorder is not None:
            recorder.paused = False


def recording() -> bool:
    """Whether this thread is recording a launch plan."""
    return _local.recorder is not None


def is_current_device(device: torch.device) -> bool:
    """Whether launches go to this device without a change of the current one; the CPU's interpreter needs none."""
    return device.type != "cuda" or device.index == torch.cuda.current_device()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The operators and launches of a function, ready to be replayed.

    A replay builds a list of values: the stream, the inputs, the constants, the addresses in the inputs, and then the
    outputs of the steps with the addresses in them. Steps take their arguments from that list by position.

    Attributes:
        constants: arguments that are neither inputs nor made by steps, including tensors that the function keeps.
        addresses: in the inputs: the index of the input and the offset in bytes.
        steps: in order.
        results: positions of the results in the list of values.
        single: whether the function returns one tensor, and no tuple.
        keep: tensors whose addresses are constants.
    """

    constants: list[Any]
    addresses: list[tuple[int, int]]
    steps: list[_Step]
    results: list[int]
    single: bool
    keep: list[Tensor]

    def __call__(self, inputs: list[Tensor]) -> Any:
        """What the function returns for inputs with the same key."""
        device = inputs[0].device
        stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else None
        values = [stream, *inputs, *self.constants]
        values += [inputs[which].data_ptr() + offset for which, offset in self.addresses]
        for function, arguments, offsets in self.steps:
            out = function(*arguments(values))
            if offsets is not None:
                values.append(out)
                if offsets:
                    start = out.data_ptr()
                    values += [start + offset for offset in offsets]
        results = [values[which] for which in self.results]
        return results[0] if self.single else tuple(results)


class _Step(NamedTuple):
    """A step of a plan: a function, a getter of its arguments, and the offsets of addresses in its output."""

    function: Callable[..., Any]
    arguments: Callable[[list[Any]], tuple[Any, ...]]
    offsets: list[int] | None


class KernelLaunch(NamedTuple):
    """A launch by the CUDA driver.

    Attributes:
        function: its handle.
        grid, block: blocks, and threads of a block, along x, y and z.
        shared: bytes of dynamic shared memory.
        pdl: programmatic dependent launch.
        types: of the arguments, in Triton's notation: ``*fp32`` and the like for tensors, ``i32``, ``fp32``.
        args: tensors and numbers.
        scratch: null pointers that follow the arguments.
    """

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    pdl: bool
    types: tuple[str, ...]
    args: tuple[Any, ...]
    scratch: int


class Recording(NamedTuple):
    """A step as it was recorded.

    Attributes:
        function, args: a replay calls the function with the arguments.
        out: its new output, if any.
        side_effects: whether it does more than make the output.
        addresses: whether it takes the addresses of tensors.
        kernel: the launch, if it is one of the CUDA driver.
        operator, options: of PyTorch, if it is one, with its keyword arguments.
        empty: whether it only allocates the output.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    out: Tensor | None
    side_effects: bool
    addresses: bool = False
    kernel: KernelLaunch | None = None
    operator: Any = None
    options: Mapping[str, Any] = MappingProxyType({})
    empty: bool = False

    def by_address(self, argument: Any) -> bool:
        """Whether an argument is passed as an address."""
        return self.addresses and isinstance(argument, Tensor)


class Recorder(TorchDispatchMode):
    """Records the operators that are called, as a dispatch mode, and launches, by `record_launch`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Recording] = []
        self.views: dict[int, tuple[Tensor, int]] = {}  # base and offset in bytes
        self.replayable = not _suspended
        self.in_operator = False
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        self.in_operator = True  # a replay of the operator repeats its launches
        out = func(*args, **kwargs)
        self.in_operator = False
        tensors = [each for each in args if isinstance(each, Tensor)]
        if not isinstance(out, Tensor) or torch.Tag.dynamic_output_shape in func.tags:
            self.replayable = False
        elif func in _EMPTY:
            make = partial(torch.empty_strided, tuple(out.shape), out.stride(), dtype=out.dtype, device=out.device)
            self.steps.append(Recording(make, (), out, False, empty=True))
        else:
            new = all(out is not each for each in tensors)
            call = partial(func, **kwargs)
            one = Recording(call, args, out if new else None, func._schema.is_mutable, operator=func, options=kwargs)
            self.steps.append(one)
            for each in tensors:
                if new and out.untyped_storage()._cdata == each.untyped_storage()._cdata:
                    base, offset = self.base(each)
                    self.views[id(out)] = base, offset + out.data_ptr() - each.data_ptr()
        lists = (each for each in (*args, [*kwargs.values()]) if isinstance(each, (list, tuple)))
        if any(isinstance(one, Tensor) for each in lists for one in each):  # a plan would hold them as constants
            self.replayable = False
        return out

    def base(self, x: Any) -> tuple[Any, int]:
        """The tensor that a tensor is a view of, and its offset in bytes; anything else is itself."""
        return self.views.get(id(x), (x, 0))

    def plan(self, inputs: list[Tensor], result: Any) -> LaunchPlan | None:
        """The launch plan of what was recorded; None if it cannot be replayed."""
        results = [result] if isinstance(result, Tensor) else list(result)
        if not self._repeatable(inputs, results):
            return None
        ours = {*map(id, inputs)} | {id(step.out) for step in self.steps if step.out is not None}
        steps, reached = self._needed(results)
        constants, keep = dict[Any, Any](), list[Tensor]()
        for step in steps:
            for each in step.args:
                base, offset = self.base(each)
                if id(base) in ours or each is STREAM:
                    continue
                constants[self._name(step, each)] = each
                if step.by_address(each):
                    constants[self._name(step, each)] = base.data_ptr() + offset
                    keep.append(base)
        names: list[Any] = [id(STREAM), *map(id, inputs), *constants]
        names += [(id(each), offset) for each in inputs for offset in reached[id(each)]]
        for step in steps:
            if step.out is not None:
                names += [id(step.out), *((id(step.out), offset) for offset in reached[id(step.out)])]
        positions = {name: position for position, name in enumerate(names)}
        plan_steps = [
            _Step(
                step.function,
                _getter([positions[self._name(step, each)] for each in step.args]),
                None if step.out is None else [*reached[id(step.out)]],
            )
            for step in steps
        ]
        addresses = [(which, offset) for which, each in enumerate(inputs) for offset in reached[id(each)]]
        result_positions = [positions[id(each)] for each in results]
        return LaunchPlan(
            [*constants.values()], addresses, plan_steps, result_positions, isinstance(result, Tensor), keep
        )

    def needed_steps(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> list[Recording] | None:
        """The steps that the results need; None if they cannot be replayed."""
        return self._needed(results)[0] if self._repeatable(inputs, results) else None

    def _repeatable(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
        ours = {*map(id, inputs)} | {id(step.out) for step in self.steps if step.out is not None}
        return self.replayable and len({*map(id, inputs)}) == len(inputs) and {*map(id, results)} <= ours

    def _name(self, step: Recording, each: Any) -> Any:
        """The identity of an argument: of the object, or of an address by its base and offset."""
        base, offset = self.base(each)
        return (id(base), offset) if step.by_address(each) else id(each)

    def _needed(self, results: Sequence[Tensor]) -> tuple[list[Recording], dict[int, dict[int, None]]]:
        """Steps without dead ones, whose outputs nothing reads, and the offsets of addresses taken in each tensor."""
        needed, reached, steps = {*map(id, results)}, defaultdict[int, dict[int, None]](dict), list[Recording]()
        for step in reversed(self.steps):
            if not step.side_effects and id(step.out) not in needed:
                continue
            steps.append(step)
            for each in step.args:
                base, offset = self.base(each)
                if step.by_address(each):
                    reached[id(base)][offset] = None
                    needed.add(id(base))
                else:
                    needed.add(id(each))
        return steps[::-1], reached


class _Local(threading.local):
    recorder: Recorder | None = None


_local = _Local()

_suspended = False

caches: list[Any] = []
"""Further caches of what was recorded; `clear` clears them."""

on_plan: list[Callable[[], object]] = []
"""Called after each recording: what replays plans without Python is built then, if it is not there."""

_plans: BoundedCache[Any, LaunchPlan | bool] = BoundedCache(MAX_PLANS)  # True: called once; False: not replayable


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % 16


def record(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Recorder]:
    """What a function returns, and the recording of what it did."""
    recorder = Recorder()
    _local.recorder = recorder
    try:
        with recorder:
            return function(*args), recorder
    finally:
        _local.recorder = None


def _getter(positions: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    match positions:
        case []:
            return lambda values: ()
        case [one]:
            return lambda values: (values[one],)
        case _:
            return itemgetter(*positions)
