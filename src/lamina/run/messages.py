"""Errors as text for one cell of a table."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb

from lamina.errors import LaminaError


def one_line(error: Exception) -> str:
    """An error message on one line, truncated to 200 characters for a table row."""
    text = " ".join(str(error).split()) or _place(error)
    if not isinstance(error, RuntimeError | LaminaError):  # whose messages may say nothing without their class
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."


def _place(error: Exception) -> str:
    """Where an error without a message was raised."""
    places = [f"at {Path(frame.f_code.co_filename).name}:{line}" for frame, line in walk_tb(error.__traceback__)]
    return places[-1] if places else ""
