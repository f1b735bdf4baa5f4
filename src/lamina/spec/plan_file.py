"""Reads and writes ``plan.toml``."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from lamina.errors import UsageError, nearest
from lamina.spec.plan import NAME, VERSION, Plan

MOST_BYTES = 16 << 20
"""A plan of ten thousand layers has two megabytes."""

_HEAD = """\
# How to run each layer of a network, as 'lamina study' measured it. To apply it:
#   lamina apply MODEL plan.toml
#   model = lamina.apply(model, "plan.toml")
# Times are microseconds of a step; accuracies are percent.
"""
_TABLES = ("run", "before", "uniform", "after", "environment")
_LISTS = ("layers", "front")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan of a file, or of a folder that holds ``plan.toml``.

    Raises:
        UsageError: there is no such file, or it is no plan; with the table and key.
    """
    file = Path(path)
    file = file / NAME if file.is_dir() else file
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"{file}: expected a plan of at most {MOST_BYTES >> 20} MiB")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: expected UTF-8 text") from error
    return parse_plan(text, str(file))


def parse_plan(text: str, source: str) -> Plan:
    """The plan of a text; ``source`` names it in messages.

    Raises:
        UsageError: as `read_plan`.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{source}: brackets are nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{source}: this is not TOML: {error}") from error
    if document.get("version") != VERSION:
        raise UsageError(
            f"{source}: expected a plan of version {VERSION} as 'lamina study' writes it, "
            f"got version {str(document.get('version'))[:20]}"
        )
    try:
        return Plan.model_validate(document)
    except ValidationError as error:
        raise UsageError("\n".join(f"{source}: {_fault(fault, document)}" for fault in error.errors()[:10])) from error


def _fault(fault: Any, document: Mapping[str, Any]) -> str:
    """A fault of the validator by its table and key, a layer by its name too."""
    parts = [str(part) for part in fault["loc"]]
    at = ".".join(parts)
    if len(parts) > 1 and parts[0] == "layers" and parts[1].isdigit():
        layers = document.get("layers")
        layer = layers[int(parts[1])] if isinstance(layers, list) and int(parts[1]) < len(layers) else None
        name = layer.get("name") if isinstance(layer, Mapping) else None
        at = f"layers[{parts[1]}]{f' ({str(name)[:60]})' if name else ''}.{'.'.join(parts[2:])}"
    if fault["type"] == "extra_forbidden":
        known = [*Plan.model_fields] if len(parts) == 1 else []
        return f"{at} is unknown" + (f": {nearest(parts[-1], known)}" if known else "")
    got = "" if fault["type"] == "missing" else f", got {str(fault['input'])[:60]!r}"
    return f"{at}: {fault['msg'][:1].lower()}{fault['msg'][1:]}{got}"


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan; a file of that name is replaced at once.

    Raises:
        UsageError: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(plan_text(plan), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def plan_text(plan: Plan) -> str:
    """TOML text that `parse_plan` reads as the plan."""
    document = plan.model_dump(by_alias=True, exclude_none=True)
    head = {key: value for key, value in document.items() if key not in (*_TABLES, *_LISTS)}
    blocks = [_HEAD, _settings(head.items())]
    blocks += [f"[{name}]\n{_settings(document[name].items())}" for name in _TABLES if document[name]]
    for name in _LISTS:
        blocks += [f"[[{name}]]\n{_settings(_given(one))}" for one in document[name]]
    return "\n".join(blocks)


def _given(table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The keys of a layer or a point, without a reason or neighbours where there are none."""
    return ((key, value) for key, value in table.items() if value or key not in ("reason", "with", "methods"))


def _settings(pairs: Iterable[tuple[str, Any]]) -> str:
    return "".join(f"{_key(key)} = {_written(value)}\n" for key, value in pairs)


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _quoted(key)


def _written(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _quoted(value)
        case Mapping():
            return "{" + ", ".join(f"{_key(key)} = {_written(one)}" for key, one in value.items()) + "}"
        case tuple() | list():
            return f"[{', '.join(map(_written, value))}]"
        case BaseModel():
            raise TypeError(value)
        case _:
            return repr(value)


def _quoted(text: str) -> str:
    # JSON's quoting, except for DEL, which TOML requires to be escaped as well.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
