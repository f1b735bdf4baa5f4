"""Records the calls of a forward pass: leaf modules by hooks, functions between them by a torch function mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from lamina.build.calls import Call, Placeholder, Slot, tensors_of
from lamina.build.describe import describe
from lamina.spec import ResolvedLayer, Shape
from lamina.spec.layers import Opaque

LEAVES = (nn.RNNBase, nn.MultiheadAttention)
"""Modules with children or several outputs that are treated as one layer."""


class Recorder(TorchFunctionMode):
    """Records the outermost calls in the network: leaf modules by hooks, functions as a torch function mode.

    With ``whole`` the network is one layer, and the mode is not to be entered.
    """

    def __init__(self, network: nn.Module, whole: bool = False):
        super().__init__()
        self.network = network
        self.whole = whole
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
        for name, module in [("", self.network)] if self.whole else self.network.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and calls its children itself
                if not any(name.startswith(f"{above}.") for above in scripts.values()):
                    scripts[module] = name
                continue
            leaf = self.whole or _is_leaf(module)
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
        if tensors_of(result):
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
        made = tensors_of(result)
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


def _plain_name(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    return name.strip("_")
