"""How DNNMark reads a value: C's ``atoi`` and ``atof``, and words compared letter by letter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from lamina.errors import nearest
from lamina.spec.faults import LONGEST, short

Remark = Callable[[str], None]
Reader = Callable[[str, Remark], Any]
"""Reads one value's text; remarks on what is odd, raises ``ValueError`` on what is impossible."""

INT_MAX = 2**31 - 1
UNCHANGED = object()
"""What a reader answers when DNNMark ignores the value and the setting keeps what it had."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def integer(least: int) -> Reader:
    """A whole number of at least ``least``, taken from the front of the text; 0 where there is none."""

    def read(text: str, remark: Remark) -> int:
        match = _INTEGER.match(text)
        digits = match[0] if match else "0"
        number = int(digits) if len(digits) <= LONGEST else INT_MAX + 1
        if abs(number) > INT_MAX:
            raise ValueError(f"{short(text)} does not fit 32 bits")
        if number < least:
            read_as = "" if digits == text else f" (read as {number})"
            raise ValueError(f"expected a whole number of at least {least}, got {short(text)}{read_as}")
        if digits != text:
            remark(f"{short(text)} is read as {number}")
        return number

    return read


def real(text: str, remark: Remark) -> float:
    """A finite number taken from the front of the text; 0 where there is none."""
    match = _REAL.match(text)
    number = float(match[0]) if match else 0.0
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {short(text)}")
    if not match or match[0] != text:
        remark(f"{short(text)} is read as {number:g}")
    return number


def within(least: float, most: float = math.inf) -> Reader:
    """A number from ``least`` to ``most``."""
    wanted = f"{least:g} to {most:g}" if math.isfinite(most) else f"at least {least:g}"

    def read(text: str, remark: Remark) -> float:
        number = real(text, remark)
        if not least <= number <= most:
            raise ValueError(f"expected {wanted}, got {short(text)}")
        return number

    return read


def word(text: str, remark: Remark) -> str:
    """Any text."""
    return text


def choice(*words: str) -> Reader:
    """One of ``words``; DNNMark stops at any other."""

    def read(text: str, remark: Remark) -> str:
        if text not in words:
            raise ValueError(f"{short(text)} is unknown: {nearest(text[:LONGEST], words)}")
        return text

    return read


def lenient(*words: str) -> Reader:
    """One of ``words``; DNNMark ignores any other."""

    def read(text: str, remark: Remark) -> Any:
        if text in words:
            return text
        remark(f"{short(text)} is unknown and has no effect")
        return UNCHANGED

    return read


def without_effect(why: str) -> Reader:
    """A key that changes nothing."""

    def read(text: str, remark: Remark) -> Any:
        remark(why)
        return UNCHANGED

    return read
