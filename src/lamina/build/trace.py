"""Tracing of a network to a list of layers, by module hooks and a torch function mode.

One forward pass over fake tensors records every call that creates a tensor: leaf modules, and functions called outside
of them (residual adds, flattening, attention). Parameters and buffers are kept by identity, so each call can be run
again separately on real tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from lamina.build.describe import describe
from lamina.errors import UnsupportedError
from lamina.spec import ResolvedLayer, Shape
from lamina.spec.layers import Opaque

LEAVES = (nn.RNNBase, nn.MultiheadAttention)
"""Modules with children or several outputs that are treated as one layer."""


@dataclass(frozen=True)
class Slot:
    """A tensor of the network; ``base`` is the slot whose memory it shares, if any."""

    number: int
    shape: Shape
    dtype: torch.dtype
    stride: tuple[int, ...]
    base: int | None = None


@dataclass(frozen=True)
class Call:
    """One call of a layer, which can be repeated on other tensors.

    ``inputs`` and ``outputs`` are slot numbers; ``template`` is the flattened argument list with a
    :class:`Placeholder` for each of ``inputs``.
    """

    resolved: ResolvedLayer
    target: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    template: tuple[Any, ...]
    structure: Any

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.resolved.name

    @property
    def module(self) -> nn.Module | None:
        """The called module, or ``None`` for a function."""
        return self.target if isinstance(self.target, nn.Module) else None

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Trainable parameters of this call."""
        if self.module is not None:
            return tuple(p for p in self.module.parameters() if p.requires_grad)
        return tuple(leaf for leaf in self.template if _is_weight(leaf))

    def double(self) -> Call:
        """The same call with its constants in float64; its module is unchanged."""
        template = tuple(
            leaf.detach().double().requires_grad_(leaf.requires_grad)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
            else leaf
            for leaf in self.template
        )
        return replace(self, template=template)

    def run(self, tensors: Sequence[Tensor], target: Callable[..., Any] | None = None) -> tuple[Tensor, ...]:
        """Call the layer on ``tensors`` (one per input slot), with another implementation ``target`` if given."""
        values = [tensors[leaf.index] if isinstance(leaf, Placeholder) else leaf for leaf in self.template]
        arguments, options = tree_unflatten(values, self.structure)
        return _tensors((target or self.target)(*arguments, **options))


@dataclass(frozen=True)
class Placeholder:
    """An input tensor in an argument list, by its index."""

    index: int


@dataclass(frozen=True)
class Trace:
    """A network in order of execution, with every tensor between its layers."""

    calls: tuple[Call, ...]
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def layers(self) -> tuple[ResolvedLayer, ...]:
        """The descriptions of the layers."""
        return tuple(call.resolved for call in self.calls)


def trace(network: nn.Module, *inputs: Tensor) -> Trace:
    """Trace the layers of a network.

    Args:
        network: any module; its in-place activations are replaced by out-of-place ones.
        inputs: example inputs of the right shape, dtype and device; their values are not used.

    Raises:
        UnsupportedError: the control flow depends on data values, or the network does not accept this input.
    """
    for module in network.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    examples = [fake.from_tensor(tensor.detach()) for tensor in inputs]
    recorder = _Recorder(network)
    for example in examples:
        recorder.slot(example)
    try:
        with fake, recorder.hooked(), recorder:
            result = network(*examples)
    except UnsupportedError:
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise UnsupportedError(
            f"{type(network).__name__} could not be traced on input {shapes}: {type(error).__name__}: {error}"
        ) from error
    outputs = tuple(recorder.number(tensor) for tensor in _tensors(result))
    return Trace(tuple(recorder.calls), tuple(recorder.slots), tuple(range(len(inputs))), outputs)


class _Recorder(TorchFunctionMode):
    """Records the outermost calls in the network: leaf modules by hooks, functions as a torch function mode."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.calls: list[Call] = []
        self.slots: list[Slot] = []
        self._alive: list[Any] = []  # keeps tensors alive, so that their ids stay unique
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._path: list[str] = []
        self._inside = 0
        self._names: dict[str, int] = {}
        self._producers: dict[int, str] = {}

    def hooked(self) -> ExitStack:
        """Context in which the hooks of this recorder are registered on every module of the network."""
        stack = ExitStack()
        for name, module in self.network.named_modules():
            leaf = _is_leaf(module) or (module is self.network and not list(module.children()))
            before = module.register_forward_pre_hook(self._enter(name, leaf), with_kwargs=True)
            after = module.register_forward_hook(self._leave(name, leaf), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        return stack

    def _enter(self, name: str, leaf: bool) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, options: Any) -> None:
            self._path.append(name)
            self._inside += leaf

        return hook

    def _leave(self, name: str, leaf: bool) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, options: Any, result: Any) -> None:
            self._path.pop()
            self._inside -= leaf
            if leaf and not self._inside:
                self._record(name or type(module).__name__.lower(), module, arguments, options, result)

        return hook

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        self._inside += 1  # functions called inside this one belong to it
        try:
            result = func(*args, **kwargs)
        finally:
            self._inside -= 1
        if getattr(func, "__name__", "") == "__setitem__":
            raise UnsupportedError(
                "the network writes into part of a tensor (x[...] = y), which cannot be run layer by layer"
            )
        if _tensors(result):
            self._record(self._function_name(func), func, args, kwargs, result)
        return result

    def slot(self, tensor: Tensor) -> int:
        """Assign a slot number to a new tensor, or to a tensor with a new value."""
        storage = tensor.untyped_storage()._cdata
        number = len(self.slots)
        base = self._storages.setdefault(storage, number)
        self.slots.append(
            Slot(number, tuple(tensor.shape), tensor.dtype, tensor.stride(), None if base == number else base)
        )
        self._numbers[id(tensor)] = number
        self._alive.append(tensor)
        return number

    def number(self, tensor: Tensor) -> int:
        """The slot number of a known tensor."""
        if id(tensor) not in self._numbers:
            raise UnsupportedError("the network returns a tensor that no layer computed (a constant or a parameter)")
        return self._numbers[id(tensor)]

    def _record(self, name: str, target: Any, arguments: Any, options: Any, result: Any) -> None:
        if isinstance(options, dict) and options.get("inplace") is True:
            options = options | {"inplace": False}
        out_of_place = None if isinstance(target, nn.Module) else _out_of_place(target)
        overwrites = out_of_place is not None
        target = out_of_place or target
        leaves, structure = tree_flatten((tuple(arguments), options))
        inputs: list[int] = []
        template: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor) and id(leaf) in self._numbers:
                template.append(Placeholder(len(inputs)))
                inputs.append(self._numbers[id(leaf)])
            else:
                template.append(leaf)
        made = _tensors(result)
        if not overwrites and all(id(tensor) in self._numbers for tensor in made):
            return  # the same tensor: an identity, or a conversion that was not needed
        name = self._unique(name)
        shapes = tuple(self.slots[number].shape for number in inputs)
        if overwrites:  # the same memory with a new value is a new tensor for later readers
            for tensor in made:
                self._storages.pop(tensor.untyped_storage()._cdata, None)
        outputs = tuple(self.slot(tensor) for tensor in made)
        alias = bool(outputs) and all(self.slots[number].base is not None for number in outputs)
        sources = tuple(self._producers.get(number, f"input{number}" if number else "input") for number in inputs)
        layer = self._layer(name, target, sources, shapes, leaves, structure, outputs, alias)
        for number in outputs:
            self._producers[number] = name
        self.calls.append(
            Call(
                ResolvedLayer(layer, shapes, self.slots[outputs[0]].shape),
                target,
                tuple(inputs),
                outputs,
                tuple(template),
                structure,
            )
        )

    def _layer(
        self,
        name: str,
        target: Any,
        sources: tuple[str, ...],
        shapes: tuple[Shape, ...],
        leaves: list[Any],
        structure: Any,
        outputs: tuple[int, ...],
        alias: bool,
    ) -> Any:
        arguments, options = tree_unflatten(leaves, structure)
        found = describe(target, shapes, arguments, options)
        shape = self.slots[outputs[0]].shape
        if found is not None:
            kind, settings = found
            try:
                layer = kind.model_validate(settings | {"name": name, "inputs": sources})
                if layer.output(*shapes) == shape and layer.view == alias:
                    return layer
            except ValueError:
                pass  # a form that the description does not cover: recorded as opaque
        weights = (
            dict(target.named_parameters())
            if isinstance(target, nn.Module)
            else {f"weight{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, nn.Parameter)}
        )
        return Opaque(
            name=name,
            inputs=sources,
            operation=type(target).__name__ if isinstance(target, nn.Module) else _plain_name(target),
            shape=shape,
            weights={key: tuple(weight.shape) for key, weight in weights.items()},
            alias=alias,
        )

    def _function_name(self, function: Any) -> str:
        return ".".join(part for part in (self._path[-1] if self._path else "", _plain_name(function)) if part)

    def _unique(self, name: str) -> str:
        """``relu``, then ``relu#2``, ``relu#3`` for further calls under one name."""
        self._names[name] = count = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


def _is_leaf(module: nn.Module) -> bool:
    return not list(module.children()) or isinstance(module, LEAVES) or hasattr(module, "lamina_layer")


def _out_of_place(function: Any) -> Any:
    """The out-of-place equivalent of an in-place function; ``None`` if the function is not in-place.

    A layer that is run repeatedly must not overwrite its input.
    """
    name = getattr(function, "__name__", "")
    if name.startswith("__i"):
        return getattr(Tensor, f"__{name[3:]}", None)
    if name.endswith("_") and not name.endswith("__"):
        found = getattr(Tensor, name[:-1], None)
        if found is None:
            raise UnsupportedError(f"the network uses {name}, which has no out-of-place form")
        return found
    return None


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_leaf and leaf.requires_grad


def _plain_name(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    return name.strip("_")


def _tensors(value: Any) -> tuple[Tensor, ...]:
    if isinstance(value, Tensor):
        return (value,)
    return tuple(leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor))
