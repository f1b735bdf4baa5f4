"""Writes a network and a workload as TOML; defaults are omitted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from lamina.errors import UsageError
from lamina.spec.layers import KINDS, Layer
from lamina.spec.method import Method
from lamina.spec.network import Network
from lamina.spec.toml.wiring import default_inputs
from lamina.spec.workload import Workload

SPREAD = ("kernel", "stride", "padding", "dilation", "output_padding", "size")
"""Settings that a layer expands over its axes, so that equal values are written once."""


def write_toml(network: Network, workload: Workload | None = None) -> str:
    """TOML text that :func:`read_toml` reads as ``network`` and ``workload``.

    Raises:
        UsageError: a layer cannot be written because it is known from a trace only.
    """
    head = {"name": network.name, "batch": network.batch, "mode": network.mode, "remarks": network.remarks}
    defaults = {"mode": "composed", "remarks": ()}
    blocks = [_settings((key, value) for key, value in head.items() if value != defaults.get(key))]
    header = "[input]" if len(network.inputs) == 1 else "[[input]]"
    blocks += [f"{header}\n{_settings(_given(source))}" for source in network.inputs]
    blocks += [f"[[layer]]\n{_settings(_layer(network, index))}" for index in range(len(network.layers))]
    if workload and (given := [*_given(workload)]):
        blocks.append(f"[workload]\n{_settings(given)}")
    return "\n".join(blocks)


def _layer(network: Network, index: int) -> Iterator[tuple[str, Any]]:
    layer = network.layers[index]
    if KINDS.get(layer.kind) is not type(layer):
        raise UsageError(f"layer {layer.name!r} ({layer.kind}) cannot be written: expected {', '.join(KINDS)}")
    yield "type", layer.kind
    before = network.layers[index - 1].name if index else ""
    sources = [source.name for source in network.inputs]
    usual = default_inputs(layer.name, before, sources, network.mode)
    for key, value in _given(layer):
        if key != "inputs":
            yield key, value
        elif value != usual:
            yield key, value[0] if len(value) == 1 else value
    if usual and not layer.inputs:
        yield "inputs", ()


def _given(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """The settings that differ from their defaults."""
    for key, field in type(model).model_fields.items():
        value = getattr(model, key)
        if isinstance(model, Layer) and key in SPREAD and isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]
        if field.is_required() or value != field.get_default(call_default_factory=True):
            yield key, value


def _settings(pairs: Iterable[tuple[str, Any]]) -> str:
    return "".join(f"{key} = {_written(value)}\n" for key, value in pairs)


def _written(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case StrEnum() | Method() | str():
            # JSON's quoting, except for DEL, which TOML requires to be escaped as well.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            return f"{{{', '.join(f'{_written(key)} = {_written(one)}' for key, one in value.items())}}}"
        case _:
            return repr(value)
