"""Operators whose calls are replayed: forward as a plan, backward as another in a node of autograd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lamina.accelerate.runtime import launch_cache
from lamina.accelerate.runtime.replay.extension import extension, when_loaded
from lamina.accelerate.runtime.replay.plan import native_plan

_Function = TypeVar("_Function", bound=Callable[..., Any])


class ReplayedOperator:
    """An operator whose calls are recorded once for each layout and replayed by the C++ extension.

    Args:
        name: of its node in autograd's graph.
        implementation: what it computes: tensors and hashable arguments to a tensor or a tuple of tensors.
        setup_context, gradient: of its autograd formula, as ``register_autograd`` takes them.
    """

    def __init__(
        self, name: str, implementation: Callable[..., Any], setup_context: Callable[..., None],
        gradient: Callable[..., Any],
    ) -> None:  # fmt: skip
        self.name, self.implementation = name, implementation
        self.setup_context, self.gradient = setup_context, gradient
        self._cache: Any = None

    def __call__(self, args: tuple[Any, ...]) -> Any | None:
        """The outputs, or None if Python must compute this call."""
        module = extension()
        if module is None or launch_cache.recording():
            return None
        self._cache = self._cache or _new_cache(module)
        out = self._cache.call(args)
        if out is True:
            entry, single = self._record(module, args)
            self._cache.put(args, entry, tuple(range(len(_tensors(args)))), single)
            out = self._cache.call(args)
        if out is False:
            return None
        if _local.calls is not None:
            _local.calls.append((self, args, out))
        return out

    def entry(self, args: tuple[Any, ...]) -> Any | None:
        """What replays a call with these arguments, if it has been recorded."""
        return self._cache.get(args)

    def _record(self, module: Any, args: tuple[Any, ...]) -> tuple[Any | None, bool]:
        """The entry of a call, None if it cannot be replayed; and whether its output is a single tensor."""
        tensors, context = _tensors(args), _Context()
        with torch.no_grad():
            result, recorder = launch_cache.record(self.implementation, args)
            single = isinstance(result, Tensor)
            outputs = [result] if single else [*result]
            self.setup_context(context, args, result)
        own = [(False, number, each) for number, each in enumerate(tensors)]
        own += [(True, number, each) for number, each in enumerate(outputs)]
        saved = [_position(own, each) for each in context.saved_tensors]
        plan = native_plan(module, recorder, tensors, outputs)
        if plan is None or None in saved or {*map(id, tensors)} & {*map(id, outputs)}:
            return None, single
        frozen = {*map(id, context.non_differentiable)}
        differentiable = [each.is_floating_point() and id(each) not in frozen for each in outputs]
        backward = _Backward(module, self.gradient, context, args, outputs)
        positions = [number for number, each in enumerate(args) if isinstance(each, Tensor)]
        entry = module.entry(self.name, plan, positions, saved, differentiable, backward)
        return entry, single


def replays_one_operator(function: _Function) -> _Function:
    """Replay a function that checks its arguments and returns the first output of one `ReplayedOperator`.

    Calls in which it does more, such as a conversion, run in Python.

    Args:
        function: of tensors and hashable arguments.
    """
    cache: Any = None

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal cache
        if torch.compiler.is_compiling() or (module := extension()) is None or launch_cache.recording():
            return function(*args, **options)
        cache = cache or _new_cache(module)
        key = (*args, *options.values(), tuple(options))
        out = cache.call(key)
        if isinstance(out, Tensor):
            return out
        if out is False:
            return function(*args, **options)
        _local.calls = calls = list[tuple[ReplayedOperator, tuple[Any, ...], Any]]()
        try:
            result = function(*args, **options)
        finally:
            _local.calls = None
        cache.put(key, *_link(key, calls, result), True)
        return result

    return cast(_Function, call)


def register_kernel(operator: Any, implementation: Callable[..., Any], device: str = "CUDA") -> None:
    """Replay an operator where the dispatcher calls it, as in compiled graphs: without Python.

    Args:
        operator: of ``torch.library``.
        implementation: what it computes, of the same arguments with tuples for lists.
        device: the dispatch key of its tensors.
    """

    def register(module: Any) -> None:
        def compute(args: tuple[Any, ...], record: bool) -> tuple[tuple[Tensor, ...], Any]:
            if not record:
                result, plan = implementation(*args), None
            else:
                with torch.no_grad():
                    result, recorder = launch_cache.record(implementation, args)
                    outputs = [result] if isinstance(result, Tensor) else [*result]
                    plan = native_plan(module, recorder, _tensors(args), outputs)
            return (result,) if isinstance(result, Tensor) else tuple(result), plan

        module.register(operator._namespace, operator._name, device, f"Autograd{device}", compute)

    when_loaded(register)


def _link(
    key: tuple[Any, ...], calls: list[tuple[ReplayedOperator, tuple[Any, ...], Any]], result: Any
) -> tuple[Any | None, tuple[int, ...]]:
    """The entry of the only operator that a function called, and its tensors among those of the function."""
    if len(calls) != 1:
        return None, ()
    (operator, args, out), tensors = calls[0], _tensors(key)
    order = [_position([(False, number, each) for number, each in enumerate(tensors)], each) for each in _tensors(args)]
    first = out if isinstance(out, Tensor) else out[0]
    if result is not first or None in order:
        return None, ()
    return operator.entry(args), tuple(each[1] for each in order if each is not None)


class _Context:
    """What the autograd formula of an operator sees in place of autograd's own context."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.materialize = True
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize = value


class _Backward:
    """The backward pass in Python, for calls without a plan: the first two, and those that are differentiated again."""

    def __init__(
        self, module: Any, gradient: Callable[..., Any], context: _Context, args: tuple[Any, ...],
        outputs: Sequence[Tensor],
    ) -> None:  # fmt: skip
        self.module, self.gradient = module, gradient
        self.state = {**vars(context), "saved_tensors": (), "non_differentiable": ()}
        self.is_tensor = [isinstance(each, Tensor) for each in args]
        self.like = [(each.shape, each.dtype, each.device) for each in outputs]

    def __call__(
        self, gradients: list[Tensor | None], saved: list[Tensor | None], needs: int, record: bool
    ) -> tuple[tuple[Tensor | None, ...], Any]:
        """Gradients of all arguments, and if they were recorded, their plan. ``needs`` has a bit for each tensor."""
        context = _Context()
        vars(context).update(self.state)
        context.saved_tensors = tuple(saved)
        bits = iter(range(len(self.is_tensor)))
        context.needs_input_grad = tuple(bool(needs >> next(bits) & 1) if each else False for each in self.is_tensor)
        if not record:
            return tuple(self._compute(context, *gradients)), None
        result, recorder = launch_cache.record(self._compute, (context, *gradients))
        inputs = [each for each in (*gradients, *saved) if each is not None]
        needed = [each for each, is_tensor in zip(result, self.is_tensor, strict=True) if is_tensor]
        return tuple(result), native_plan(self.module, recorder, inputs, needed)

    def _compute(self, context: _Context, *gradients: Tensor | None) -> Any:
        if context.materialize:
            gradients = tuple(
                torch.zeros(shape, dtype=dtype, device=device) if each is None else each
                for each, (shape, dtype, device) in zip(gradients, self.like, strict=True)
            )
        return self.gradient(context, *gradients)


class _Local(threading.local):
    calls: list[tuple[ReplayedOperator, tuple[Any, ...], Any]] | None = None


_local = _Local()


def _new_cache(module: Any) -> Any:
    cache = module.Cache()
    launch_cache.caches.append(cache)
    return cache


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    return [each for each in args if isinstance(each, Tensor)]


def _position(own: list[tuple[bool, int, Tensor]], tensor: Tensor | None) -> tuple[bool, int] | None:
    """Where a tensor is among others: whether among outputs, and its number; -1 for no tensor."""
    if tensor is None:
        return False, -1
    return next(((is_output, number) for is_output, number, each in own if each is tensor), None)
