"""Errors as text for one cell of a table."""

from __future__ import annotations

from lamina.errors import LaminaError


def one_line(error: Exception) -> str:
    """An error message on one line, truncated to 200 characters for a table row."""
    text = " ".join(str(error).split())
    if not isinstance(error, RuntimeError | LaminaError):  # whose messages may say nothing without their class
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."
