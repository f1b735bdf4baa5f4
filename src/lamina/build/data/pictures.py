"""Decoding pictures with Pillow, which is imported only here and only when a picture must be decoded."""

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
            "decoding PNG and JPEG pictures needs Pillow, which is not installed: pip install pillow"
        ) from error
    return Image


def size(file: Path) -> tuple[int, int]:
    """Width and height of a picture, from its head.

    Raises:
        UsageError: not a picture.
    """
    image = pillow()
    try:
        with image.open(file) as picture:
            width, height = picture.size
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise _damaged(str(file), error) from error
    return width, height


def decode(source: Path | bytes, name: str, side: int | None = None) -> NDArray[np.uint8]:
    """Pixels ``(3, H, W)`` of a PNG or JPEG; with ``side``, of its centre square resized to that.

    Raises:
        UsageError: not a picture, or a damaged one.
    """
    image = pillow()
    try:
        with image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            rgb = picture.convert("RGB")
            if side is not None:
                rgb = _centre_square(rgb).resize((side, side), image.Resampling.LANCZOS)
            return np.asarray(rgb).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise _damaged(name, error) from error


def _centre_square(picture: Any) -> Any:
    width, height = picture.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    return picture.crop((left, top, left + edge, top + edge))


def _damaged(name: str, error: Exception) -> UsageError:
    return UsageError(f"{name}: expected a PNG or JPEG picture, got something Pillow cannot decode: {error}")
