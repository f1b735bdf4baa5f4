"""The model zoo: one family per file. ``external`` loads models of other packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from lamina.build.models import alexnet, cifarnet, conv4fc3, gpt, lenet, lstm, resnet, tdnn, vgg, vit
from lamina.errors import UsageError, nearest
from lamina.spec.zoo import ZOO, Entry, find

__all__ = ["ZOO", "Entry", "create", "entries", "find"]

_FAMILIES = (alexnet, cifarnet, conv4fc3, gpt, lenet, lstm, resnet, tdnn, vgg, vit)
_FACTORIES: dict[str, Callable[..., nn.Module]] = {
    name: getattr(family, name) for family in _FAMILIES for name in ZOO if hasattr(family, name)
}


def entries() -> tuple[Entry, ...]:
    """All networks of the zoo."""
    return tuple(ZOO.values())


def create(name: str, num_classes: int | None = None, **options: int) -> nn.Module:
    """The network called ``name``, newly initialized, with ``num_classes`` outputs (default: its own).

    ``options`` are further parameters of the factory, such as ``groups=2`` of ``alexnet2012``.

    Raises:
        UsageError: no such network, no such option, or an invalid value.
    """
    entry, factory = find(name), _FACTORIES[name]
    classes = entry.classes if num_classes is None else num_classes
    if classes < 1:
        raise UsageError(f"{name}: expected num_classes of at least 1, got {classes}")
    known = set(inspect.signature(factory).parameters) - {"num_classes"}
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "it has no options"
            raise UsageError(f"{name} has no option {option!r}: {hint}")
    try:
        return factory(classes, **options)
    except (UsageError, ValueError, RuntimeError) as error:
        given = ", ".join(f"{key}={value}" for key, value in options.items())
        raise UsageError(f"{name} cannot be built with {given or f'{classes} classes'}: {error}") from error
