"""Settings from the command line:  ``batch=64``, ``input.shape=[3,64,64]``, ``conv1.out_channels=32``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from lamina.errors import nearest
from lamina.spec.faults import Faults
from lamina.spec.validated import short

Table = dict[str, Any]


def override(
    head: Table,
    workload: Table,
    inputs: Sequence[Table],
    layers: Sequence[Table],
    settings: Mapping[str, str],
    faults: Faults,
) -> None:
    """Apply each setting to its table; ``input`` also names the only input."""
    tables: dict[str, Table] = {str(table["name"]): table for table in [*layers, *inputs]}
    tables |= {"workload": workload} | ({"input": inputs[0]} if len(inputs) == 1 else {})
    for setting, text in settings.items():
        target, dot, key = setting.rpartition(".")
        if not dot and key in HEAD:
            head[key] = _value(text)
        elif target in tables:
            tables[target][key] = _value(text)
        else:
            wrong, known = (target, tables) if dot else (key, HEAD)
            where = "there is no layer, input or table called" if dot else "there is no setting called"
            faults.add(f"--set {setting}: {where} {short(wrong)}: {nearest(wrong, known)}")


HEAD = ("name", "batch", "mode")


def _value(text: str) -> Any:
    """A TOML value; anything else is read as a string, so that quotes may be omitted."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if read.keys() == {"value"} else text
