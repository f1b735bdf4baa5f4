"""Library settings of a precision: whether float32 matrix products may use tensor cores (TF32)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def precision_note(precision: str, device: torch.device) -> str | None:
    """What a user is told of a precision that a device does not have."""
    if precision == "tf32" and device.type == "cpu":
        return "tf32 is a mode of tensor cores: on the CPU it is computed in fp32"
    return None


@contextmanager
def precision_mode(precision: str, autotune: bool = True) -> Iterator[None]:
    """Set the library for a precision, and restore the settings afterwards: TF32 only for ``tf32``.

    With ``autotune`` the library times its algorithms and uses the fastest, which may differ between processes;
    without, it uses its heuristics.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = autotune
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
