"""Collects the faults of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from lamina.errors import Fault, SpecError
from lamina.spec.layers import Layer
from lamina.spec.network import Input, Network
from lamina.spec.shape import Shape
from lamina.spec.validated import plain as plain
from lamina.spec.validated import short as short

SHOWN = 20
"""Maximum number of faults reported for one file; the others are only counted."""
MOST_LAYERS = 10_000
"""Maximum number of layers in a file; more are taken for a mistake and would be slow to check."""

_SKIPPED = "its own settings are faulty"


class Faults:
    """The faults of one file, in the order found."""

    def __init__(self, source: str):
        self.source = source
        self._kept: list[Fault] = []
        self._found = 0

    def __len__(self) -> int:
        return self._found

    def add(self, message: str | Callable[[], str], line: int | None = None) -> None:
        """Add a fault. An expensive message is given as a function, called only if it is reported."""
        self._found += 1
        if len(self._kept) < SHOWN:
            self._kept.append(Fault(message if isinstance(message, str) else message(), line))

    def refuse(self) -> None:
        """Raise the collected faults, if any.

        Raises:
            SpecError: the first faults by line, and how many more there are.
        """
        if not self._found:
            return
        faults = sorted(self._kept, key=lambda fault: fault.line or 0)
        more = self._found - len(faults)
        raise SpecError(self.source, [*faults, *([Fault(f"and {more} more faults")] if more else [])])


class Unreadable(Layer):
    """Placeholder of a layer with invalid settings, so that the rest of the network can be checked."""

    kind: ClassVar[str] = "unreadable"
    arity: ClassVar[tuple[int, int | None]] = (0, None)

    def output(self, *inputs: Shape) -> Shape:
        raise ValueError(_SKIPPED)


def check_network(network: Network, faults: Faults) -> None:
    """Add the faults of resolving ``network``, except those of its unreadable layers and their readers."""
    unreported = _miswired(network)[SHOWN:]  # finding close matches for thousands of names would take minutes
    drop = {id(layer) for layer in unreported}
    checked = tuple(Unreadable(name=each.name) if id(each) in drop else each for each in network.layers)
    try:
        network.model_copy(update={"layers": checked}).resolve()
    except SpecError as error:
        for fault in error.faults:
            if not fault.message.endswith(_SKIPPED):
                faults.add(fault.message, fault.line)
    for layer in unreported:
        faults.add(f"layer {layer.name!r} reads an unknown layer", network.lines.get(layer.name))


def _miswired(network: Network) -> list[Layer]:
    """The layers with an input that is not before them."""
    before = {source.name for source in network.inputs}
    found = []
    for layer in network.layers:
        if not before.issuperset(layer.inputs):
            found.append(layer)
        before.add(layer.name)
    return found


def placeholder() -> Input:
    """An input for networks whose inputs are invalid."""
    return Input(name="(unreadable)", shape=(1,))
