"""What a precision means to the library: element type apart, whether float32 products may use tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def precision_mode(precision: str) -> Iterator[None]:
    """Library settings for a precision, restored afterwards: TF32 only for ``tf32``; autotuning always on."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
