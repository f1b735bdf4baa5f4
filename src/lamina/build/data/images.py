"""Image decoding with Pillow, which is imported only here and only when an image must be decoded."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.errors import MissingError, UsageError


def pillow() -> ModuleType:
    """Pillow's ``Image`` module.

    Raises:
        MissingError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingError(
            "decoding PNG and JPEG images needs Pillow, which is not installed: pip install pillow"
        ) from error
    return Image


def size(file: Path) -> tuple[int, int]:
    """Width and height of an image, from its header.

    Raises:
        UsageError: not an image.
    """
    image = pillow()
    try:
        with image.open(file) as opened:
            width, height = opened.size
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise _damaged(str(file), error) from error
    return width, height


def decode(source: Path | bytes, name: str, side: int | None = None) -> NDArray[np.uint8]:
    """Pixels ``(3, H, W)`` of a PNG or JPEG; with ``side``, center-cropped to a square and resized.

    Raises:
        UsageError: not an image, or a damaged one.
    """
    image = pillow()
    try:
        with image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
            rgb = opened.convert("RGB")
            if side is not None:
                rgb = _center_square(rgb).resize((side, side), image.Resampling.LANCZOS)
            return np.asarray(rgb).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise _damaged(name, error) from error


def _center_square(opened: Any) -> Any:
    width, height = opened.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    return opened.crop((left, top, left + edge, top + edge))


def _damaged(name: str, error: Exception) -> UsageError:
    return UsageError(f"{name}: expected a PNG or JPEG image, got a file that Pillow cannot decode: {error}")
