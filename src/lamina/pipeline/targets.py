"""From a word on the command line to a network, and from a method's name to its implementation."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import nn

from lamina import accelerate, build, run
from lamina.accelerate.registry import converter
from lamina.build import Target, Trace
from lamina.build.inputs import Made
from lamina.build.models import external
from lamina.build.models.external import External
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.candidates import nearest_network
from lamina.pipeline.described import meaning
from lamina.spec import Input, Method, Point, ResolvedLayer, Workload
from lamina.spec.files import read
from lamina.spec.zoo import Entry


def find(
    text: str | nn.Module,
    variables: Mapping[str, str] | None = None,
    input_size: Sequence[int] | Sequence[Input] | str | None = None,
) -> tuple[Target, Workload | None]:
    """What a word on the command line means: a file, a network of the zoo, a recipe, or ``package:callable``.

    In Python also a network that is there: it stays as it is, and copies of it run, with its weights.

    The second answer is the workload a file or recipe asks for. ``input_size`` is the shape of a sample, the inputs, or
    the name of a function that makes them for a batch size, of a network that does not define them itself.

    Raises:
        UsageError: it means nothing; with the nearest name that does. Or a network cannot be copied.
        SpecError: the file is wrong.

    Example:
        >>> import torch
        >>> from lamina import pipeline
        >>> target, _ = pipeline.find(torch.nn.Linear(8, 4), input_size=(8,))
        >>> [layer.output for layer in target.resolve(2)]
        [(2, 4)]
    """
    if isinstance(text, nn.Module):
        given = Made(external.function(input_size)) if isinstance(input_size, str) else input_size
        return build.from_external(type(text).__name__, partial(external.of_module, text), given), None
    if not isinstance(text, str):
        raise UsageError(f"expected the name of a network or a torch.nn.Module, got {type(text).__name__}")
    match meaning(text, variables):
        case Entry() as entry:
            return build.from_zoo(entry), None
        case Path() as path:
            network, workload = read(path, variables or {})
            return build.from_network(network), workload
        case name:
            given = Made(external.function(input_size)) if isinstance(input_size, str) else input_size
            return build.from_external(name, partial(_load, name, variables), given), None


def _load(source: str, variables: Mapping[str, str] | None) -> External:
    """The network of ``source``; of a name that its module does not have, the nearest that can be a network is told."""
    try:
        return external.load(source, variables)
    except UsageError as error:
        package, _, name = source.partition(":")
        module = sys.modules.get(Path(package).stem if package.endswith(".py") else package)
        file = getattr(module, "__file__", None)
        if file and name and name.partition(".")[0] not in vars(module) and (hint := nearest_network(Path(file), name)):
            raise UsageError(f"{package!r} has no {name!r}: {hint}") from error
        raise


def implementation(point: Point) -> run.Implement | None:
    """How to compute a layer by the method that the point, or the layer itself, asks for.

    Raises:
        UsageError: there is no such method, algorithm or option.
    """

    def implement(layer: ResolvedLayer, module: nn.Module | None) -> nn.Module | None:
        method = layer.layer.method or point.method
        if method == Method():
            return module
        if module is None:
            raise UnsupportedError(f"{method} is for modules, this is a function ({layer.layer.kind})")
        if method.dense:
            return build.dense(method, layer, module)
        # A copy: the dense layer still carries the walk, and its weights are what is projected.
        if isinstance(module, nn.Sequential):  # no layer is one, so these are layers that `units` merged
            config = accelerate.configuration(method)
            fused: nn.Module = converter(config).replace(build.copied(module), config)
            return fused
        model, conversion = accelerate.convert(build.copied(module), accelerate.configuration(method))
        if not conversion.replaced:
            reasons = dict.fromkeys(str(skipped.refusal) for skipped in conversion.skipped)
            raise UnsupportedError(f"{method}: {'; '.join(reasons)}")
        return model

    require_known(point.method)
    return implement


def or_dense(implement: run.Implement | None, refusals: dict[str, str]) -> run.Implement | None:
    """The same, but layers that it does not support keep their module; ``refusals`` gets their names with reasons."""
    if implement is None:
        return None

    def kept(layer: ResolvedLayer, module: nn.Module | None) -> nn.Module | None:
        try:
            return implement(layer, module)
        except UnsupportedError as error:
            refusals[layer.name] = str(error)
            return module

    return kept


def only(names: Collection[str], implement: run.Implement | None) -> run.Implement | None:
    """The same for layers of these names; the others keep their module."""
    if implement is None:
        return None
    return lambda layer, module: implement(layer, module) if layer.name in names else module


def units(trace: Trace, method: Method) -> list[list[int]]:
    """Which calls of a traced network a method replaces together, such as a convolution and its ReLU.

    They need not be in a ``Sequential``: it is enough that each tensor between them has one reader. A method that the
    first layer of them has itself goes before.
    """
    own = [call.resolved.layer.method for call in trace.calls]
    found = []
    for wanted in dict.fromkeys([method, *filter(None, own)]):
        if wanted.dense or not hasattr(cell := converter(config := accelerate.configuration(wanted)), "runs"):
            continue
        for chain in build.chains(trace):
            modules = [build.as_module(trace.calls[index]) for index in chain]
            for part in cell.runs(nn.Sequential(*modules), config):  # type: ignore[arg-type]
                first, *others = (chain[index] for index in part)
                if (own[first] or method) == wanted and all(own[index] in (None, wanted) for index in others):
                    found.append([first, *others])
    return found


def require_known(method: Method) -> None:
    """Refuse a method or option that means nothing.

    Raises:
        UsageError: no such method, dense algorithm or option.
    """
    build.require_algorithm(method)
    if method.dense:
        return
    accelerate.configuration(method)
