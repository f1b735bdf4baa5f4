"""The calls of a network's modules as `torch.fx` traces them: which follows which, wherever they are defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import fx, nn

from lamina.errors import UnsupportedError


@dataclass(frozen=True)
class Traced:
    """A network's graph, in which ``target`` of a call is the path of its module.

    Attributes:
        graph: of calls; values that the network's code computes itself are nodes as well.
        modules: by path.
        once: paths of modules that have no other, that are called once, and whose parameters nothing else reads.
    """

    graph: fx.Graph
    modules: dict[str, nn.Module]
    once: frozenset[str]

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls on one value, and nothing else; None for other nodes."""
        if node.op != "call_module" or node.kwargs or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
            return None
        return self.modules.get(str(node.target))


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
    named = list(model.named_modules(remove_duplicate=False))
    paths = Counter(id(one) for _, one in named)
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    once = (path for path, one in named if paths[id(one)] == 1 and calls[path] == 1 and path not in read)
    return Traced(graph, dict(named), frozenset(once))


def _graph(model: nn.Module) -> fx.Graph:
    """The graph of a network that is called on one input or, if it needs several, on those without a default."""
    # Inside another module its arguments are those of a call, which can be traced where `*inputs` cannot.
    outer = nn.Sequential(model)
    try:
        with unchanged(model):
            if len(_defaults(model)) + 1 < len(signature(model.forward).parameters):
                return _Tracer().trace(model, _defaults(model))
            graph = _Tracer().trace(outer)
    except Exception as error:  # the network's own code, run on symbols
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise UnsupportedError(f"torch.fx cannot trace the network: {type(error).__name__}: {reason}") from error
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = str(node.target).removeprefix("0").removeprefix(".")
    return graph


def _defaults(model: nn.Module) -> dict[str, Any]:
    """The arguments of a network that a call may leave out, with their values."""
    parameters = signature(model.forward).parameters
    return {name: one.default for name, one in parameters.items() if one.default is not one.empty}


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put attributes and buffers back that a forward pass sets, which while tracing are symbols."""
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, buffers in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
