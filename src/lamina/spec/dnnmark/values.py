"""DNNMark's parsing of values: C's ``atoi`` and ``atof``, and exact comparison of words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from lamina.errors import nearest
from lamina.spec.validated import LONGEST, short

Warn = Callable[[str], None]
Reader = Callable[[str, Warn], Any]
"""Parses a value; warns about unusual values, raises ``ValueError`` for invalid ones."""

INT_MAX = 2**31 - 1
UNCHANGED = object()
"""Returned by a reader if DNNMark ignores the value and keeps the previous one."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def integer(least: int) -> Reader:
    """An integer of at least ``least``, parsed from the start of the text; 0 if there is none."""

    def read(text: str, warn: Warn) -> int:
        match = _INTEGER.match(text)
        digits = match[0] if match else "0"
        number = int(digits) if len(digits) <= LONGEST else INT_MAX + 1
        if abs(number) > INT_MAX:
            raise ValueError(f"{short(text)} does not fit in 32 bits")
        if number < least:
            read_as = "" if digits == text else f" (read as {number})"
            raise ValueError(f"expected an integer of at least {least}, got {short(text)}{read_as}")
        if digits != text:
            warn(f"{short(text)} is read as {number}")
        return number

    return read


def real(text: str, warn: Warn) -> float:
    """A finite number, parsed from the start of the text; 0 if there is none."""
    match = _REAL.match(text)
    number = float(match[0]) if match else 0.0
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {short(text)}")
    if not match or match[0] != text:
        warn(f"{short(text)} is read as {number:g}")
    return number


def within(least: float, most: float = math.inf) -> Reader:
    """A number from ``least`` to ``most``."""
    wanted = f"{least:g} to {most:g}" if math.isfinite(most) else f"at least {least:g}"

    def read(text: str, warn: Warn) -> float:
        number = real(text, warn)
        if not least <= number <= most:
            raise ValueError(f"expected {wanted}, got {short(text)}")
        return number

    return read


def word(text: str, warn: Warn) -> str:
    """Any text."""
    return text


def choice(*words: str) -> Reader:
    """One of ``words``; DNNMark aborts on others."""

    def read(text: str, warn: Warn) -> str:
        if text not in words:
            raise ValueError(f"{short(text)} is unknown: {nearest(text[:LONGEST], words)}")
        return text

    return read


def lenient(*words: str) -> Reader:
    """One of ``words``; DNNMark ignores others."""

    def read(text: str, warn: Warn) -> Any:
        if text in words:
            return text
        warn(f"{short(text)} is unknown and ignored")
        return UNCHANGED

    return read


def without_effect(why: str) -> Reader:
    """A key that is ignored, with the reason."""

    def read(text: str, warn: Warn) -> Any:
        warn(why)
        return UNCHANGED

    return read
