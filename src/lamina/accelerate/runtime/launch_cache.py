"""Tapes: doing again what a function of tensors did for others like them, without its Python.

To check operands, to choose tiles and to lay out arguments takes the host many times as long as a GPU takes for a small
layer. All of it follows from sizes, types and settings. So what a function does for the same ones again is recorded,
once: the operators that it calls, and the kernels that it launches with the places of its tensors' addresses.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lamina.accelerate.runtime.triton_ops import precision

STREAM = object()
"""Among the arguments of a launch: torch's current stream."""

MOST = 2048
"""Tapes that are kept; the oldest goes first."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_aten = torch.ops.aten
_EMPTY = {_aten.new_empty.default, _aten.new_empty_strided.default, _aten.empty.memory_format}


def taped(function: _Function) -> _Function:
    """A function that is recorded when it is called for the second time for the same, and played from then on.

    Args:
        function: of tensors, and of what can be hashed, to a tensor or a tuple of them. What it does follows from
            shapes, strides, types, alignments and devices, what is no tensor, how float32 is multiplied and whether
            autocast is on; whoever changes something else has to `forget`. Tensors that it keeps between calls are
            never replaced. It launches by `launches` and `cuda` alone.
    """

    @wraps(function)
    def call(*args: Any) -> Any:
        tensors = [each for each in args if isinstance(each, Tensor)]
        if recording() or not is_current(tensors[0].device):
            return function(*args)
        autocast = torch.is_autocast_enabled(tensors[0].device.type)  # which operators see again
        key = (function, precision(), autocast, *[_alike(each) if isinstance(each, Tensor) else each for each in args])
        found = _known.get(key)
        if isinstance(found, Tape):
            return found(tensors)
        if found is None:  # what is asked for once is not worth it
            if len(_known) >= MOST:
                _known.pop(next(iter(_known)), None)
            _known[key] = True
        if not found:
            return function(*args)
        result, recorded = _record(function, args, tensors)
        _known[key] = recorded or False
        return result

    return cast(_Function, call)


def forget() -> None:
    """Forget all tapes: a part of what was recorded has been replaced, such as how tiles are chosen."""
    _known.clear()


def launched(function: Callable[..., Any], *args: Any, addresses: bool) -> None:
    """Tell who records, if anyone does, that a kernel was launched as ``function(*args)`` will again.

    With ``addresses`` that takes those in place of tensors.
    """
    recorder = _local.recorder
    if recorder is not None and not recorder.within:
        recorder.steps.append(_Step(function, args, None, True, addresses))


def recording() -> bool:
    """Whether anyone records."""
    return _local.recorder is not None


def is_current(device: torch.device) -> bool:
    """Whether launches go to this device without a change of devices; the CPU's interpreter needs none."""
    return device.type != "cuda" or device.index == torch.cuda.current_device()


@dataclass(frozen=True, slots=True)
class Tape:
    """What was recorded. Values are the stream, inputs, constants, addresses of inputs, and then what steps make.

    Attributes:
        constants: what steps are told besides tensors, and tensors and addresses that the function keeps.
        addresses: of inputs, by their places and offsets in bytes.
        steps: in order.
        results: their places among the values.
        single: whether the one result is not in a tuple.
        keep: whose addresses are constants.
    """

    constants: list[Any]
    addresses: list[tuple[int, int]]
    steps: list[_Again]
    results: list[int]
    single: bool
    keep: list[Tensor]

    def __call__(self, inputs: list[Tensor]) -> Any:
        """What the function returns for inputs like those it was recorded with."""
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


class _Again(NamedTuple):
    """A step: its function, what takes its arguments from the values, and offsets of addresses of what it makes."""

    function: Callable[..., Any]
    arguments: Callable[[list[Any]], tuple[Any, ...]]
    offsets: list[int] | None


class _Step(NamedTuple):
    """A step as it was seen: what it made, if anything new, whether it did something besides."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    out: Tensor | None
    acts: bool
    addresses: bool = False

    def by_address(self, argument: Any) -> bool:
        """Whether an argument is told as an address."""
        return self.addresses and isinstance(argument, Tensor)


class _Recorder(TorchDispatchMode):
    """Sees the operators that are called, and is told of launches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self.views: dict[int, tuple[Tensor, int]] = {}  # of what, from which byte on
        self.whole = True
        self.within = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.within = True  # what an operator launches is done again with it
        out = func(*args, **kwargs)
        self.within = False
        given = [each for each in args if isinstance(each, Tensor)]
        if not isinstance(out, Tensor) or torch.Tag.dynamic_output_shape in func.tags:
            self.whole = False
        elif func in _EMPTY:
            make = partial(torch.empty_strided, tuple(out.shape), out.stride(), dtype=out.dtype, device=out.device)
            self.steps.append(_Step(make, (), out, False))
        else:
            new = all(out is not each for each in given)
            self.steps.append(_Step(partial(func, **kwargs), args, out if new else None, func._schema.is_mutable))
            for each in given:
                if new and out.untyped_storage()._cdata == each.untyped_storage()._cdata:
                    base, offset = self.base(each)
                    self.views[id(out)] = base, offset + out.data_ptr() - each.data_ptr()
        lists = (each for each in (*args, [*kwargs.values()]) if isinstance(each, (list, tuple)))
        if any(isinstance(one, Tensor) for each in lists for one in each):  # of which a tape would make constants
            self.whole = False
        return out

    def base(self, x: Any) -> tuple[Any, int]:
        """What a tensor is a view of, and from which byte on; anything else is itself."""
        return self.views.get(id(x), (x, 0))

    def tape(self, inputs: list[Tensor], result: Any) -> Tape | None:
        """What was seen as it can be done again; None if it cannot."""
        results = [result] if isinstance(result, Tensor) else list(result)
        ours = {*map(id, inputs)} | {id(step.out) for step in self.steps if step.out is not None}
        if not self.whole or len({*map(id, inputs)}) < len(inputs) or not {*map(id, results)} <= ours:
            return None
        steps, reached = self._needed(results)
        told, keep = dict[Any, Any](), list[Tensor]()  # what is no input and not made: constants, and what is kept
        for step in steps:
            for each in step.args:
                base, offset = self.base(each)
                if id(base) in ours or each is STREAM:
                    continue
                told[self._name(step, each)] = each
                if step.by_address(each):
                    told[self._name(step, each)] = base.data_ptr() + offset
                    keep.append(base)
        names: list[Any] = [id(STREAM), *map(id, inputs), *told]
        names += [(id(each), offset) for each in inputs for offset in reached[id(each)]]
        for step in steps:
            if step.out is not None:
                names += [id(step.out), *((id(step.out), offset) for offset in reached[id(step.out)])]
        at = {name: place for place, name in enumerate(names)}
        again = [
            _Again(
                step.function,
                _taker([at[self._name(step, each)] for each in step.args]),
                None if step.out is None else [*reached[id(step.out)]],
            )
            for step in steps
        ]
        addresses = [(which, offset) for which, each in enumerate(inputs) for offset in reached[id(each)]]
        places = [at[id(each)] for each in results]
        return Tape([*told.values()], addresses, again, places, isinstance(result, Tensor), keep)

    def _name(self, step: _Step, each: Any) -> Any:
        """What an argument is called: itself, or an address by what it lies in."""
        base, offset = self.base(each)
        return (id(base), offset) if step.by_address(each) else id(each)

    def _needed(self, results: list[Tensor]) -> tuple[list[_Step], dict[int, dict[int, None]]]:
        """Steps without those whose results nobody looks at, and offsets at which addresses of tensors are taken."""
        wanted, reached, steps = {*map(id, results)}, defaultdict[int, dict[int, None]](dict), list[_Step]()
        for step in reversed(self.steps):
            if not step.acts and id(step.out) not in wanted:
                continue
            steps.append(step)
            for each in step.args:
                base, offset = self.base(each)
                if step.by_address(each):
                    reached[id(base)][offset] = None
                    wanted.add(id(base))
                else:
                    wanted.add(id(each))
        return steps[::-1], reached


class _Local(threading.local):
    recorder: _Recorder | None = None


_local = _Local()

_known: dict[Any, Tape | bool] = {}  # True: has been asked for once; False: cannot be recorded


def _alike(x: Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % 16


def _record(function: Callable[..., Any], args: tuple[Any, ...], tensors: list[Tensor]) -> tuple[Any, Tape | None]:
    recorder = _Recorder()
    _local.recorder = recorder
    try:
        with recorder:
            result = function(*args)
    finally:
        _local.recorder = None
    return result, recorder.tape(tensors, result)


def _taker(where: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    match where:
        case []:
            return lambda values: ()
        case [one]:
            return lambda values: (values[one],)
        case _:
            return itemgetter(*where)
