"""Exported runs as text: read with suspicion, written so that equal runs make equal files."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

from lamina.errors import UsageError


def parse_document(text: str) -> Any:
    """The JSON of an exported run, for :meth:`lamina.store.Store.import_run`.

    Raises:
        UsageError: it is cut off or no JSON, names something twice in one object, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise _refusal("values nested too deeply") from error
    except ValueError as error:
        raise _refusal(str(error)) from error


def write_document(document: Any, path: Path) -> None:
    """Write an exported run as JSON, compressed where the file's name ends in ``.gz`` or ``.xz``.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(document, allow_nan=False).encode()
    try:
        path.write_bytes(_packed(text, path.suffix))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})") from error


def _packed(text: bytes, suffix: str) -> bytes:
    match suffix:
        case ".gz":
            return gzip.compress(text, mtime=0)
        case ".xz":
            return lzma.compress(text, preset=9)
        case _:
            return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"{twice!r} twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name}, which is no JSON")


def _refusal(got: str) -> UsageError:
    return UsageError(f"expected a run exported with --format trace, whole and as it was written, got: {got}")
