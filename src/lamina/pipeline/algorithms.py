"""Convolutions of a network by a dense algorithm, such as ``dense:space_to_depth``, where it is faster if asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lamina import build
from lamina.accelerate.convert import Progress, Where, kept, put
from lamina.accelerate.select import DENSE, LayerCall, Selector, observe
from lamina.errors import UnsupportedError
from lamina.pipeline.apply import describe_type
from lamina.record import Conversion, ConvertedLayer, Selection
from lamina.spec import Method

KINDS = (nn.Conv1d, nn.Conv2d)


def convert_algorithm(
    model: nn.Module,
    method: Method,
    where: Where | None = None,
    *,
    example: Any = None,
    selector: Selector | None = None,
    progress: Progress | None = None,
) -> tuple[nn.Module, Conversion]:
    """Replace convolutions, in place, by the same convolutions with an algorithm; their results stay, up to rounding.

    Args:
        model: changed in place, unless it is itself a convolution.
        method: a dense algorithm: ``dense:space_to_depth``.
        where: as `accelerate.convert.convert` takes it, and so are the others.
        example: an input of the model.
        selector: times each convolution by the library and by the algorithm; all are replaced without it.
        progress: is called after each selection.

    Returns:
        The model, and a record of every convolution.
    """
    reasons = {
        name: refusal_of(module, method) or kept(model, name, where)
        for name, module in model.named_modules()
        if type(module) in KINDS
    }
    able = [name for name, reason in reasons.items() if reason is None]
    calls: dict[str, LayerCall] = {}
    if example is not None:
        with torch.set_grad_enabled(selector is not None and selector.training):
            calls = observe(model, able, example)
    layers: list[ConvertedLayer] = []
    for name, reason in reasons.items():
        module, selection = model.get_submodule(name), None
        if reason is None:
            try:
                if selector is not None:
                    selection = select_algorithm(module, method, selector, calls.get(name))
                    reason = selection.reason if selection.impl == DENSE else None
                    if progress is not None:
                        progress(name, selection)
                elif example is not None and name not in calls:
                    raise UnsupportedError("the example did not reach it")
            except UnsupportedError as error:
                reason = str(error)
        if reason is None:
            model = put(model, name, build.by_algorithm(method, module))
        numel = sum(one.numel() for one in module.parameters())
        layers.append(ConvertedLayer(name, type(module).__name__, str(method), numel, numel, reason, selection))
    return model, Conversion(str(method), tuple(layers))


def refusal_of(module: nn.Module, method: Method) -> str | None:
    """Why a convolution cannot have an algorithm, or nothing."""
    try:
        build.by_algorithm(method, module)
    except UnsupportedError as error:
        return str(error).removeprefix(f"{method}: ")
    return None


def select_algorithm(module: nn.Module, method: Method, chosen: Selector, call: LayerCall | None) -> Selection:
    """Whether a convolution's step is faster by an algorithm than by the library.

    Raises:
        UnsupportedError: nothing reached the layer.
        UsageError: the layer does not run.
    """
    if call is None:
        raise UnsupportedError("the example did not reach it")
    new = build.by_algorithm(method, module)
    question = f"{describe_type(module)} as {method} on {call.signature}"
    return chosen.select(question, {DENSE: lambda: module, str(method): lambda: new}, call)
