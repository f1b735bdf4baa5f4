"""The calls of a network's modules as `torch.fx` traces them: which follows which, wherever they are defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lamina.errors import UnsupportedError

Calls = dict[str, list[fx.Node]]
"""The nodes that call each module, by its path."""

_ITEMS = (list, dict, set)
_SAME = ("dtype", "device", "is_cuda", "requires_grad")
"""Attributes of a parameter that a layer in its place shares."""


@dataclass(frozen=True)
class Traced:
    """A network's graph, in which ``target`` of a call is the path of its module.

    Attributes:
        graph: of calls; values that the network's code computes itself are nodes as well.
        modules: by path.
        once: paths of modules that have no other, that are called once, and whose parameters nothing else reads.
        read: paths of modules whose parameters the network's code computes with itself.
        others: the calls of modules in training and in evaluation mode, and where an optional argument has a value, as
            far as `torch.fx` can trace that.
    """

    graph: fx.Graph
    modules: dict[str, nn.Module]
    once: frozenset[str]
    read: frozenset[str] = frozenset()
    others: tuple[Calls, ...] = ()

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls on one value, and nothing else; None for other nodes."""
        if node.op != "call_module" or node.kwargs or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
            return None
        return self.modules.get(str(node.target))

    def reader(self, node: fx.Node) -> fx.Node | None:
        """The node that alone reads what a node computes, if that is so in every call of the network."""
        if len(node.users) != 1:
            return None
        (reader,) = node.users
        return reader if all(_adjacent(calls, node, reader) for calls in self.others) else None


def _adjacent(calls: Calls, node: fx.Node, reader: fx.Node) -> bool:
    """Whether one alone reads the other where they are called. Only modules that are called once are known again."""
    written, read = calls.get(str(node.target), []), calls.get(str(reader.target), [])
    if len(written) == 1 and [str(one.target) for one in written[0].users] != [str(reader.target)]:
        return False
    return len(read) != 1 or [str(one.target) for one in read[0].all_input_nodes] == [str(node.target)]


class _Tracer(fx.Tracer):
    """Does not look into layers: those of torch and lamina, and all without children."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = type(m).__module__.startswith("lamina.accelerate.")
        childless = not any(True for _ in m.children())
        return ours or childless or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> Traced:
    """The calls of a network, which is not changed.

    Raises:
        UnsupportedError: `torch.fx` cannot trace it, with the reason.
    """
    graph = _graph(model)
    graphs = [graph, *_other_graphs(model)]
    calls = [_calls(one) for one in graphs]
    named = list(model.named_modules(remove_duplicate=False))
    paths = Counter(id(one) for _, one in named) + held(model)
    read = frozenset(str(node.target).rpartition(".")[0] for one in graphs for node in one.nodes if _computes(node))
    alone = {path for path, one in named if paths[id(one)] == 1} - read
    again = {path for each in calls for path, nodes in each.items() if len(nodes) > 1}
    return Traced(graph, dict(named), frozenset(alone & calls[0].keys() - again), read, tuple(calls[1:]))


def _computes(node: fx.Node) -> bool:
    """Whether a node reads a parameter for more than what a new layer has too, such as its dtype."""
    if node.op != "get_attr":
        return False
    return any(user.target is not getattr or user.args[1] not in _SAME for user in node.users)


def _calls(graph: fx.Graph) -> Calls:
    found: Calls = {}
    for node in graph.nodes:
        if node.op == "call_module":
            found.setdefault(str(node.target), []).append(node)
    return found


def held(model: nn.Module) -> Counter[int]:
    """How often plain attributes, lists, tuples and dicts of a network hold a module, by its ``id``.

    A module that takes its place in the network does not reach them.
    """
    found, seen = Counter[int](), set[int]()
    values = [value for one in model.modules() for name, value in vars(one).items() if name != "_modules"]
    while values:
        value = values.pop()
        if isinstance(value, nn.Module):
            found[id(value)] += 1
        elif type(value) in (list, tuple, dict) and id(value) not in seen:
            seen.add(id(value))
            values += value.values() if isinstance(value, dict) else value
    return found


def _graph(model: nn.Module, given: dict[str, Any] | None = None) -> fx.Graph:
    """The graph of a network that is called on one input or, if it needs several, on those without a default.

    With ``given``, these arguments have values and all others are inputs.
    """
    concrete = _defaults(model) if given is None else given
    # Inside another module its arguments are those of a call, which can be traced where `*inputs` cannot.
    outer = nn.Sequential(model)
    try:
        with unchanged(model):
            if given is not None or len(concrete) + 1 < len(signature(model.forward).parameters):
                return _Tracer().trace(model, concrete)
            graph = _Tracer().trace(outer)
    except Exception as error:  # the network's own code, run on symbols
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise UnsupportedError(f"torch.fx cannot trace the network: {type(error).__name__}: {reason}") from error
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = str(node.target).removeprefix("0").removeprefix(".")
    return graph


def _other_graphs(model: nn.Module) -> Iterator[fx.Graph]:
    """Those in other modes, and of calls that give an optional argument a value, as far as they can be traced."""
    defaults = _defaults(model)
    calls: list[dict[str, Any] | None] = [None]
    for name, value in defaults.items():
        others = {other: one for other, one in defaults.items() if other != name}
        if isinstance(value, bool) or value is None:
            calls.append(others if value is None else others | {name: not value})
    given, *rest = _modes(model)
    try:
        for modes in (given, *rest):
            for module, training in modes.items():
                module.training = training
            for call in calls if modes is not given else calls[1:]:
                with suppress(UnsupportedError):
                    yield _graph(model, call)
    finally:
        for module, training in given.items():
            module.training = training


def _modes(model: nn.Module) -> list[dict[nn.Module, bool]]:
    """The mode of each module: as it is, the other one, and all in training or all in evaluation mode."""
    given = {module: module.training for module in model.modules()}
    found = [given]
    flipped = {module: not training for module, training in given.items()}
    for modes in (flipped, dict.fromkeys(given, True), dict.fromkeys(given, False)):
        if modes not in found:
            found.append(modes)
    return found


def _defaults(model: nn.Module) -> dict[str, Any]:
    """The arguments of a network that a call may leave out, with their values."""
    parameters = signature(model.forward).parameters
    return {name: one.default for name, one in parameters.items() if one.default is not one.empty}


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back what a forward pass sets, which while tracing are symbols: attributes, their items, and buffers.

    Also the values of tensors that it writes to, and random state.
    """
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    items = [(one, one.copy()) for _, attributes, _ in before for one in attributes.values() if type(one) in _ITEMS]
    written = _Written()
    devices = {one.device.index for one in model.parameters() if one.device.type == "cuda"}
    try:
        with torch.random.fork_rng(sorted(devices)), written:
            yield
    finally:
        for module, attributes, buffers in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        for one, kept in items:
            one.clear()
            (one.extend if isinstance(one, list) else one.update)(kept)
        with torch.no_grad():
            for tensor, value in reversed(written.before):
                tensor.copy_(value)


class _Written(TorchDispatchMode):
    """Keeps the values of tensors that operators write to, in the order of the operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | (kwargs or {})
        for one in func._schema.arguments:
            tensor = given.get(one.name)
            if one.alias_info is not None and one.alias_info.is_write and isinstance(tensor, Tensor):
                self.before.append((tensor, tensor.clone()))
        return func(*args, **(kwargs or {}))
