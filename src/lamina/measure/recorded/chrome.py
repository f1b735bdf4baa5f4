"""Parses Chrome traces that torch.profiler exported. Times are in nanoseconds."""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from lamina.errors import SpecError
from lamina.measure.attribution import Activity

Kind = Literal["annotation", "module", "op"]

_HOST: dict[str, Kind] = {
    "user_annotation": "annotation",
    "python_function": "module",
    "cpu_op": "op",
    "operator": "op",
}
_MODULE, _BACKWARD = "nn.Module: ", "autograd::engine::evaluate_function"
_LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Span(NamedTuple):
    """A named interval of one host thread.

    A forward operation and its autograd node have the same ``sequence`` number; ``backward`` is true for the latter.
    """

    thread: str
    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    sequence: int | None = None
    backward: bool = False


class Call(NamedTuple):
    """A runtime or driver call that may submit work to the device."""

    correlation: int
    thread: str
    start_ns: int


@dataclass(frozen=True)
class Events:
    """The events of a trace, and its device properties."""

    spans: tuple[Span, ...]
    calls: tuple[Call, ...]
    activities: tuple[Activity, ...]
    device: Mapping[str, Any]  # of the first kernel
    header: Mapping[str, Any]


def looks_like_trace(document: object) -> bool:
    """Whether JSON is a Chrome trace."""
    return isinstance(document, list | dict) and (
        isinstance(document, list) or isinstance(document.get("traceEvents"), list)
    )


def load(content: bytes, source: str) -> Any:
    """The JSON document in a file. Errors: SpecError with the position."""
    try:
        return from_json(content.removeprefix(BOM_UTF8), cache_strings="keys")
    except ValueError as error:
        raise SpecError(source, f"expected complete JSON, got: {error}; export it again") from error


def read(document: Any, source: str) -> Events:
    """The events of a trace, by category. Errors: SpecError with the index of the invalid event."""
    if not looks_like_trace(document):
        raise SpecError(source, "expected a Chrome trace with 'traceEvents', as torch.profiler exports it")
    events = document if isinstance(document, list) else document["traceEvents"]
    header = {} if isinstance(document, list) else {k: v for k, v in document.items() if k != "traceEvents"}
    spans: list[Span] = []
    calls: list[Call] = []
    activities: list[Activity] = []
    on: Any = None
    for at, event in enumerate(events):
        category = event.get("cat") if isinstance(event, dict) else None
        if category is None or event.get("ph") != "X":
            continue
        try:
            category = str(category).lower()
            if category in _HOST:
                if span := _span(event, category):
                    spans.append(span)
            elif category in _LAUNCHES:
                if "correlation" in event.get("args", {}):
                    calls.append(Call(_correlation(event), _thread(event), _ns(event, "ts")))
            elif category in _DEVICE:
                if not activities:
                    on = event["args"].get("device")
                activities.append(_activity(event))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fault = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise SpecError(
                source, f"event {at} ({category}) is not in the format of torch.profiler: {fault}"
            ) from error
    return Events(tuple(spans), tuple(calls), tuple(activities), _device(header, on), header)


def _span(event: Mapping[str, Any], category: str) -> Span | None:
    name = str(event["name"])
    kind = _HOST[category]
    if kind == "module":
        if not name.startswith(_MODULE):
            return None
        name = name.removeprefix(_MODULE)
    args = event.get("args", {})
    start = _ns(event, "ts")
    sequence = args.get("Sequence number")
    known = isinstance(sequence, int) and sequence >= 0
    backward = name.startswith(_BACKWARD) or bool(args.get("Fwd thread id"))
    return Span(_thread(event), kind, name, start, start + _ns(event, "dur"), sequence if known else None, backward)


def _activity(event: Mapping[str, Any]) -> Activity:
    args = event["args"]
    return Activity(
        correlation=_correlation(event),
        name=str(event["name"]),
        start_ns=_ns(event, "ts"),
        duration_ns=_ns(event, "dur"),
        grid=_triple(args.get("grid")),
        block=_triple(args.get("block")),
        registers=_count(args.get("registers per thread")),
        shared_bytes=_count(args.get("shared memory")),
    )


def _correlation(event: Mapping[str, Any]) -> int:
    number: object = event["args"]["correlation"]
    if not isinstance(number, int):
        raise ValueError(f"expected a whole correlation id, got {number!r}")
    return number


def _thread(event: Mapping[str, Any]) -> str:
    return f"{event.get('pid')}/{event.get('tid')}"


def _ns(event: Mapping[str, Any], field: str) -> int:
    value: object = event[field]
    if not isinstance(value, int | float) or not math.isfinite(value) or (field == "dur" and value < 0):
        raise ValueError(f"expected {field!r} in microseconds, got {value!r}")
    return round(value * 1000)


def _triple(values: Any) -> tuple[int, int, int] | None:
    if values is None:
        return None
    x, y, z = values
    if not all(type(size) is int and size >= 0 for size in (x, y, z)):
        raise ValueError(f"expected three counts, got {values!r}")
    return x, y, z


def _count(value: object) -> int | None:
    if value is None or (isinstance(value, int) and 0 <= value < 2**62):
        return value
    raise ValueError(f"expected a count, got {value!r}")


def _device(header: Mapping[str, Any], on: Any) -> Mapping[str, Any]:
    known = header.get("deviceProperties")
    cards = [card for card in known if isinstance(card, dict)] if isinstance(known, list) else []
    return next((card for card in cards if card.get("id") == on), cards[0] if cards else {})


def version(number: Any) -> str | None:
    """CUDA version string of a version number such as 13000.

    >>> version(12040)
    '12.4'
    """
    return f"{number // 1000}.{number % 1000 // 10}" if type(number) is int and number > 0 else None


STEP = re.compile(r"ProfilerStep#\d+")
