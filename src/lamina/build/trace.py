"""Tracing of a network to a list of layers, by module hooks and a torch function mode.

One forward pass over fake tensors records every call that creates a tensor: leaf modules, and functions called outside
of them (residual adds, flattening, attention). Where the path depends on values, it is a pass over the real tensors.
Parameters and buffers are kept by identity, so each call can be run again separately on real tensors.
"""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from lamina.build.describe import describe
from lamina.build.flops import count
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


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """PyTorch logs the traceback of an operation that fails on fake tensors, which is handled here."""
    logger = logging.getLogger(FakeTensorMode.__module__)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@_without_tracebacks()
def trace(network: nn.Module, *inputs: Tensor) -> Trace:
    """Trace the layers of a network.

    Control flow that depends on values is followed for these inputs. A write into part of a tensor is recorded as a new
    tensor for later readers; views of the old one that were taken before do not see it.

    Args:
        network: any module; its in-place activations become out-of-place ones, and lazy layers get their sizes.
        inputs: example inputs of the right shape, dtype and device; values matter only to control flow.

    Raises:
        UnsupportedError: the network does not accept this input, or on the meta device its control flow needs values.
    """
    for module in network.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    try:
        if any(is_lazy(parameter) for parameter in network.parameters()):
            _run_once(network, inputs)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            found = _recorded(network, [fake.from_tensor(tensor.detach()) for tensor in inputs], fake)
            leaves = [leaf for call in found.calls for leaf in call.template] if found else []
            # A constant of a function that is not seen, such as one of TorchScript, needs its value.
            if any(isinstance(leaf, FakeTensor) for leaf in leaves) and not any(tensor.is_meta for tensor in inputs):
                found = _recorded(network, [tensor.detach().clone() for tensor in inputs], nullcontext())
        except Exception:
            if any(tensor.is_meta for tensor in inputs):
                raise
            found = _recorded(network, [tensor.detach().clone() for tensor in inputs], nullcontext())
        if found is None:  # it made layers in this pass, as it does in its first
            _run_once(network, inputs)
            found = _recorded(network, [tensor.detach().clone() for tensor in inputs], nullcontext())
        if found is None:
            raise UnsupportedError("it makes layers in every forward pass")
    except Exception as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        hint = "; set a larger --batch-size" if "more than 1 value per channel" in str(error) else ""
        raise UnsupportedError(
            f"{type(network).__name__} could not be traced on input {shapes}: {type(error).__name__}: {error}{hint}"
        ) from error
    return found


def _recorded(network: nn.Module, examples: Sequence[Tensor], mode: AbstractContextManager[object]) -> Trace | None:
    """The trace of one forward pass, after which modules, buffers and random state are as before.

    ``None`` if it made layers of which nothing remains.
    """
    own = set(network.modules())
    recorder = _Recorder(network)
    for example in examples:
        recorder.slot(example)
    devices = {example.device.index for example in examples if example.device.type == "cuda"}
    with torch.random.fork_rng(sorted(devices)), _unchanged(network), mode, recorder.hooked(), recorder:
        result = network(*examples)
        if not own.issuperset(network.modules()):
            return None
    outputs = tuple(recorder.numbers(_tensors(result)))
    with _unchanged(network):
        calls = tuple(_counted(call, recorder.slots, examples[0].device) for call in recorder.calls)
    return Trace(calls, tuple(recorder.slots), tuple(range(len(examples))), outputs)


def _counted(call: Call, slots: Sequence[Slot], device: torch.device) -> Call:
    """The call with the FLOPs of its phases, if it has no closed form."""
    layer = call.resolved.layer
    if not isinstance(layer, Opaque) or layer.alias or not call.inputs:
        return call
    used = [slots[number] for number in call.inputs]
    examples = [torch.empty_strided(slot.shape, slot.stride, dtype=slot.dtype, device="meta") for slot in used]
    flops = count(call.run, call.target, examples, device, call.weights)
    if not flops or not any(flops):
        return call
    return replace(call, resolved=replace(call.resolved, layer=layer.model_copy(update={"flops": flops})))


def _run_once(network: nn.Module, inputs: Sequence[Tensor]) -> None:
    with torch.no_grad():
        network(*(tensor.detach().clone() for tensor in inputs))


@contextmanager
def _unchanged(network: nn.Module) -> Iterator[None]:
    """Put attributes, modules and the values of buffers back that a forward pass sets."""
    values = {buffer: buffer.detach().clone() for buffer in network.buffers()}
    modules = [module for module in network.modules() if not isinstance(module, torch.jit.ScriptModule)]
    before = [dict(vars(module)) for module in modules]
    # Parameters, hooks, and what a module collects.
    members = [
        {name: value.copy() for name, value in attributes.items() if type(value) in (dict, OrderedDict, list)}
        for attributes in before
    ]
    try:
        yield
    finally:
        for module, attributes, inside in zip(modules, before, members, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
            for name, own in inside.items():
                member = attributes[name]
                member.clear()
                (member.extend if isinstance(member, list) else member.update)(own)
        with torch.no_grad():
            for buffer, value in values.items():
                buffer.copy_(value)


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
        self._arguments: list[tuple[Any, Any]] = []
        self._inside = 0
        self._names: dict[str, int] = {}
        self._producers: dict[int, str] = {}

    def hooked(self) -> ExitStack:
        """Context in which the hooks of this recorder are registered on every module of the network.

        They enclose the network's own hooks, which belong to their layer.
        """
        stack = ExitStack()
        scripts: dict[nn.Module, str] = {}
        for name, module in self.network.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and calls its children itself
                if not any(name.startswith(f"{above}.") for above in scripts.values()):
                    scripts[module] = name
                continue
            leaf = _is_leaf(module) or (module is self.network and not list(module.children()))
            before = module.register_forward_pre_hook(self._enter(name, leaf), with_kwargs=True, prepend=True)
            after = module.register_forward_hook(self._leave(name, leaf), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        if scripts:
            self._hook_scripts(scripts, stack)
        return stack

    def _hook_scripts(self, scripts: Mapping[nn.Module, str], stack: ExitStack) -> None:
        """TorchScript modules are layers, which only the hooks of all modules see."""

        def before(module: nn.Module, arguments: Any) -> None:
            if module in scripts:
                self._enter(scripts[module], True)(module, arguments, {})

        def after(module: nn.Module, arguments: Any, result: Any) -> None:
            if module in scripts:
                self._leave(scripts[module], True)(module, arguments, {}, result)

        stack.callback(register_module_forward_pre_hook(before).remove)
        stack.callback(register_module_forward_hook(after).remove)

    def _enter(self, name: str, leaf: bool) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, options: Any) -> None:
            self._path.append(name)
            self._arguments.append((arguments, options))
            self._inside += leaf

        return hook

    def _leave(self, name: str, leaf: bool) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any, __: Any, result: Any) -> None:
            self._path.pop()
            arguments, options = self._arguments.pop()
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
            result = args[0]
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

    def numbers(self, tensors: Iterable[Tensor]) -> Iterator[int]:
        """The slot numbers of those that a layer computed; constants and parameters have none."""
        return (self._numbers[id(tensor)] for tensor in tensors if id(tensor) in self._numbers)

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
        found = describe(target, shapes, arguments, options) if shapes else None  # none of weights only
        shape = self.slots[outputs[0]].shape
        if found is not None:
            kind, settings = found
            try:
                layer = kind.model_validate(settings | {"name": name, "inputs": sources})
                if layer.output(*shapes) == shape and layer.view == alias:
                    return layer
            except (ValueError, IndexError):
                pass  # a form that the description does not cover, such as one of weights only: recorded as opaque
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
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        found = getattr(Tensor, name[:-1], None)
        return found if callable(found) else _on_copy(function)  # requires_grad is an attribute
    return None


def _on_copy(function: Any) -> Any:
    """A function that writes into its first argument, on a copy of it."""

    @functools.wraps(function)
    def out_of_place(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copy = tensor.clone()
        function(copy, *args, **kwargs)
        return copy

    return out_of_place


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
    leaves = tree_flatten(value)[0]
    nested = (_tensors(vars(leaf)) if is_dataclass(leaf) else (leaf,) for leaf in leaves)
    return tuple(leaf for group in nested for leaf in group if isinstance(leaf, Tensor))
