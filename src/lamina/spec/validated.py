"""Models of settings that are validated, and the validator's messages reworded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from lamina.errors import Fault, SpecError, nearest
from lamina.spec.cost import Phase

LONGEST = 60
"""Maximum number of characters of a file's text quoted in a message."""


class Validated(BaseModel):
    """Settings that never change. A call with wrong ones is refused by name.

    Readers of files call ``model_validate``, whose ``ValidationError`` they report with :func:`plain`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # type checkers take the arguments from the fields

        def __init__(self, **settings: Any):
            try:
                super().__init__(**settings)
            except ValidationError as error:
                faults = [Fault(message) for _, message in plain(error, type(self).model_fields)]
                raise SpecError(type(self).__name__, faults) from None

        __init__.__pydantic_base_init__ = True  # model_validate need not call it


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
        case "less_than":
            return f"{key} = {got}: expected less than {context['lt']}"
        case "less_than_equal":
            return f"{key} = {got}: expected at most {context['le']}"
        case "too_short":
            return f"{key} = {got}: expected at least {context['min_length']} items"
        case "too_long":
            return f"{key} = {got}: expected at most {context['max_length']} items"
        case kind if kind in _EXPECTED:
            return f"{key} = {got}: expected {_EXPECTED[kind]}"
        case _:
            message = complaint["msg"]
            return f"{key} = {got}: {message[0].lower()}{message[1:]}"


def _listed(value: Any) -> Any:
    """Tuples as the lists that files write."""
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
