"""What a precision means to the library: element type apart, whether float32 products may use tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def precision_mode(precision: str, autotune: bool = True) -> Iterator[None]:
    """Library settings for a precision, restored afterwards: TF32 only for ``tf32``.

    With ``autotune`` the library times its algorithms and takes the fastest, which may differ from process to
    process; without, it goes by its heuristics.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = autotune
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
