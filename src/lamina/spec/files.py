"""Reads workload files, by their suffix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lamina.errors import SpecError, UsageError
from lamina.spec.dnnmark import read_dnnmark
from lamina.spec.network import Network
from lamina.spec.toml import read_toml
from lamina.spec.workload import Workload

SUFFIXES = (".toml", ".dnnmark", ".dnntemplate")
MAX_BYTES = 16 * 2**20
"""Maximum size of a workload file in bytes; a network of thousands of layers needs a hundredth of it."""


def read(path: Path, variables: Mapping[str, str] = {}) -> tuple[Network, Workload]:
    """The network and workload of a file. DNNMark files have no workload section: theirs is the default.

    Raises:
        UsageError: there is no such file, or it cannot be one of these.
        SpecError: everything wrong with what the file says.
    """
    text = _text(path)
    if path.suffix == ".toml":
        return read_toml(text, str(path), variables)
    return read_dnnmark(text, str(path), variables), Workload()


def _text(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: expected a file ending in {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise UsageError(f"{path}: expected a file, got a folder")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file; `lamina recipes ls` lists the shipped ones") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: expected a workload of at most {MAX_BYTES // 2**20} MiB; this file is larger")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(str(path), f"line {line}: expected UTF-8 text, got byte 0x{content[error.start]:02x}") from None
