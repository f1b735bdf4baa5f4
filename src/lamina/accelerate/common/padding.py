"""The padding of convolutions that methods compute: zeros."""

from __future__ import annotations

from typing import Any


def padding_refusal(dense: Any) -> str | None:
    """Why a convolution's padding cannot be computed, or ``None``."""
    if dense.padding_mode == "zeros":
        return None
    return f"padding_mode={dense.padding_mode!r} is not supported, only zeros: pad in front of a layer with padding=0"
