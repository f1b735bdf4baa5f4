"""``runs import``: bring in a run of another machine, or the trace of another tool, all or nothing."""

from __future__ import annotations

import gzip
import lzma
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import IO

from lamina.errors import SpecError, UsageError
from lamina.measure import recorded
from lamina.pipeline.uncollected import uncollected
from lamina.store import Store, open_store, parse_document

LARGEST = 1 << 30
"""Bytes of a file, unpacked, that an import reads at most."""
RATIO, FREE = 250, 64 << 20
"""A packed file may unpack to so many times its size, or to so many bytes: traces are packed 10 to 60 times."""

_SNIFFED = 100  # bytes that tell JSON from a table
_REPORT = b"NVR\0"
_PACKED: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),  # type: ignore[dict-item, return-value]
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_EXPECTED = (
    "a run from 'lamina runs export --format trace', a trace that torch.profiler exported for Chrome, "
    "or what 'ncu --csv --page raw' printed"
)


def import_file(path: Path, store: Store) -> str:
    """Import a file by what it contains, packed by gzip or xz or not; return the run's id.

    Errors:
        SpecError: the file is nothing that can be imported, or damaged; nothing has been stored.
        UsageError: the file cannot be read, or its run is in the database already.
    """
    name = path.name
    content = content_of(path)
    with uncollected():
        if content.startswith(_REPORT):
            raise SpecError(name, "a report of Nsight Compute: print it with 'ncu --import FILE --csv --page raw'")
        if content.removeprefix(BOM_UTF8)[:_SNIFFED].lstrip().startswith((b"{", b"[")):
            return _from_json(content, name, store)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SpecError(name, f"expected {_EXPECTED}, got a file that is no text") from error
        if "Kernel Name" not in text and not text.startswith("=="):
            raise SpecError(name, f"expected {_EXPECTED}, got neither")
        return _keep(recorded.from_ncu_csv(text, content, name), name, store)


def _from_json(content: bytes, name: str, store: Store) -> str:
    document = recorded.load(content, name)
    if isinstance(document, list) and document and all(_is_row(each) for each in document):
        got = "rows of 'lamina runs export --format json'"
        raise SpecError(name, f"expected {_EXPECTED}, got {got}: export the run with --format trace")
    if recorded.looks_like_trace(document):
        return _keep(recorded.from_torch_trace(document, content, name), name, store)
    if isinstance(document, dict) and {"format", "run"} <= document.keys():
        return store.import_run(parse_document(content.decode()))
    raise SpecError(name, f"expected {_EXPECTED}, got other JSON")


def _is_row(each: object) -> bool:
    """Whether JSON is a row of ``runs export --format json``."""
    return isinstance(each, dict) and {"run", "layer", "phase", "median_us"} <= each.keys()


def _keep(recording: recorded.Recording, name: str, store: Store) -> str:
    """Store a recording in one transaction: as the document that a database of its own exports."""
    run_id = recording.run.id
    try:
        with open_store(":memory:") as scratch:
            scratch.begin(recording.run)
            scratch.add_profile(run_id, recording.rows, recording.kernels, recording.coverage)
            scratch.add_counters(run_id, recording.counters)
            document = scratch.export_run(run_id)
    except ValueError as error:
        raise SpecError(name, f"the trace holds what no database can: {error}") from error
    return store.import_run(document)


def content_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            start = file.read(max(map(len, _PACKED)))
            file.seek(0)
            for mark, unpack in _PACKED.items():
                if start.startswith(mark):
                    with unpack(file) as unpacked:
                        return _limited(unpacked, path, max(FREE, RATIO * path.stat().st_size))
            return _limited(file, path, LARGEST)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise SpecError(path.name, f"expected a complete gzip or xz file, got: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error


def _limited(file: IO[bytes], path: Path, most: int) -> bytes:
    content = file.read(min(most, LARGEST) + 1)
    if len(content) > LARGEST:
        raise SpecError(path.name, f"larger than {LARGEST >> 20} MiB unpacked; record fewer steps")
    if len(content) > most:
        raise SpecError(path.name, f"unpacks to over {RATIO} times its size; unpack it yourself if you trust it")
    return content
