"""Collects the faults of a file, and rewords the validator's messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from pydantic import ValidationError

from lamina.errors import Fault, SpecError, nearest
from lamina.spec.cost import Phase
from lamina.spec.layers import Layer
from lamina.spec.network import Input, Network
from lamina.spec.shape import Shape

SHOWN = 20
"""Maximum number of faults reported for one file; the others are only counted."""
MOST_LAYERS = 10_000
"""Maximum number of layers in a file; more are taken for a mistake and would be slow to check."""
LONGEST = 60
"""Maximum number of characters of a file's text quoted in a message."""

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


def short(value: Any) -> str:
    """A value as shown in messages, truncated."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def plain(error: ValidationError, known: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Each validation error as (key, message); ``known`` are the valid keys."""
    complaints = error.errors(include_url=False)
    itemised = {complaint["loc"][0] for complaint in complaints if len(complaint["loc"]) > 1}
    for complaint in complaints:
        place = complaint["loc"] or ("",)
        if complaint["type"] == "too_short" and place[0] in itemised:
            continue  # too few valid items remain because the others are faulty
        steps = [f" (item {step + 1})" if isinstance(step, int) else f".{step}" for step in place]
        yield str(place[0]), _sentence(complaint, "".join(steps)[1:], known)


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}


def _sentence(complaint: Any, key: str, known: Iterable[str]) -> str:
    context, got = complaint.get("ctx", {}), short(_listed(complaint["input"]))
    match complaint["type"]:
        case "missing":
            return f"{key} is missing"
        case "extra_forbidden":
            return f"key {short(key)} is unknown: {nearest(key[:LONGEST], known)}"
        case "is_instance_of" if context["class"] == Phase.__name__:
            return f"{key} = {got}: expected {', '.join(Phase)}"
        case "value_error":
            return str(context["error"])
        case "literal_error" | "enum":
            words = re.findall(r"'([^']*)'", context["expected"])
            hint = nearest(complaint["input"][:LONGEST], words) if words and isinstance(complaint["input"], str) else ""
            return f"{key} = {got}: {hint or 'expected ' + context['expected']}"
        case "greater_than_equal":
            return f"{key} = {got}: expected at least {context['ge']}"
        case "greater_than":
            return f"{key} = {got}: expected more than {context['gt']}"
        case "less_than_equal":
            return f"{key} = {got}: expected at most {context['le']}"
        case "too_short":
            return f"{key} = {got}: expected at least {context['min_length']} items"
        case kind if kind in _EXPECTED:
            return f"{key} = {got}: expected {_EXPECTED[kind]}"
        case _:
            message = complaint["msg"]
            return f"{key} = {got}: {message[0].lower()}{message[1:]}"


def _listed(value: Any) -> Any:
    """Tuples as the lists that files write."""
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
