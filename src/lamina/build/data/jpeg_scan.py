""".npz files of JPEG images that share one header.

Image ``i`` is ``jpeg_header + scan[offs[i]:offs[i + 1]] + FF D9``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lamina.build.data import archive, images
from lamina.build.data.dataset import Samples
from lamina.errors import UsageError

FORM = "an .npz of JPEG scans (jpeg_header, class_names and scan_S, offs_S, y_S for each split S)"

_END_OF_IMAGE = b"\xff\xd9"


def splits(path: Path) -> tuple[str, ...]:
    """Splits for which the file has scans."""
    keys = archive.keys(path) if path.is_file() else frozenset()
    if not {"jpeg_header", "class_names"} <= keys:
        return ()
    return tuple(
        split for split in ("train", "test", "val") if {f"scan_{split}", f"offs_{split}", f"y_{split}"} <= keys
    )


def read(path: Path, split: str) -> Samples:
    """Images ``(N, 3, H, W)``, decoded, and labels of one split.

    Raises:
        UsageError: the arrays or an image are damaged, or images differ in size.
        MissingError: Pillow is not installed.
    """
    header, scan, offs, y, names = archive.arrays(
        path, "jpeg_header", f"scan_{split}", f"offs_{split}", f"y_{split}", "class_names"
    )
    labels = archive.whole_numbers(y, path, f"y_{split}")
    ends = archive.whole_numbers(offs, path, f"offs_{split}")
    start = archive.unsigned_bytes(header, path, "jpeg_header", axes=(1,)).tobytes()
    stream = archive.unsigned_bytes(scan, path, f"scan_{split}", axes=(1,)).tobytes()
    if len(ends) != len(labels) + 1 or ends[0] != 0 or ends[-1] != len(stream) or (np.diff(ends) < 0).any():
        raise UsageError(
            f"{path}: expected offs_{split} as {len(labels) + 1} increasing offsets from 0 to {len(stream)}, "
            f"got {len(ends)} from {ends[:1]} to {ends[-1:]}"
        )
    decoded: list[np.ndarray] = []
    for index in range(len(labels)):
        body = stream[ends[index] : ends[index + 1]]
        decoded.append(images.decode(start + body + _END_OF_IMAGE, f"{path}, {split} image {index}"))
        if decoded[index].shape != decoded[0].shape:
            raise UsageError(f"{path}: expected images of one size, {decoded[0].shape}, got {decoded[index].shape}")
    if not decoded:
        raise UsageError(f"{path}: expected at least one {split} image, got none")
    return Samples(np.stack(decoded), labels, tuple(map(str, names.ravel())))
