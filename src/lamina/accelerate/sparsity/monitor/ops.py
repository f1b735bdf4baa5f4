"""Launching the pass over an activation map."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamina.accelerate.sparsity.monitor import kernels
from lamina.accelerate.sparsity.monitor.observation import WIDTHS, WORDS
from lamina.errors import MissingError, UnsupportedError

INTERPRETED = not isinstance(kernels.count_kernel, triton.JITFunction)
"""Whether kernels run in Triton's interpreter, on the CPU."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

PROGRAMS = 512
"""Most programs of a pass: a few for each multiprocessor, few enough to sum up at once."""

COLUMNS = max(WIDTHS)
ROWS = 32


class Pass:
    """The pass over maps of one number of channels, with the memory it counts in.

    Both launches may be captured in a CUDA graph; every replay counts anew.
    """

    def __init__(self, rows: int, device: torch.device):
        self.rows = rows
        self._stamp = torch.zeros(1, dtype=torch.int64, device=device)
        self._alive = torch.zeros(rows, dtype=torch.int64, device=device)
        self._found = torch.zeros((PROGRAMS, WORDS), dtype=torch.int64, device=device)

    def launch(self, matrices: Tensor, words: Tensor, relu_to: Tensor | None = None) -> None:
        """Count a map ``(images, channels, pixels)`` into ``words``, int64 ``(WORDS,)``.

        With ``relu_to``, of the map's shape and type or the map itself, ReLU of the map is written there and counted.

        Raises:
            MissingError: the map is not on a GPU, and kernels are not interpreted.
            UnsupportedError: its type is not one of :data:`DTYPES`.
        """
        check(matrices)
        columns = matrices.shape[0] * matrices.shape[2]
        programs = min(triton.cdiv(columns, COLUMNS), PROGRAMS)
        y = matrices if relu_to is None else relu_to
        with torch.cuda.device_of(matrices):
            kernels.count_kernel[(programs,)](
                matrices,
                y,
                self._stamp,
                self._alive,
                self._found,
                self.rows,
                columns,
                matrices.shape[2],
                *matrices.stride(),
                *y.stride(),
                RELU=relu_to is not None,
                WORDS=WORDS,
                ROWS=min(ROWS, triton.next_power_of_2(self.rows)),
                COLUMNS=COLUMNS,
                HALF=matrices.dtype.itemsize < 4,
                INDEX=tl.int64 if max(_span(matrices), _span(y), columns + COLUMNS) >= 2**31 else tl.int32,
            )
            kernels.finish_kernel[(1,)](
                self._stamp,
                self._alive,
                self._found,
                words,
                self.rows,
                programs,
                WORDS=WORDS,
                PROGRAMS=min(128, triton.next_power_of_2(programs)),
                ROWS=min(1024, triton.next_power_of_2(self.rows)),
            )


def _span(x: Tensor) -> int:
    """One more than the largest offset within a tensor."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def check(matrices: Tensor) -> None:
    """Refuse what the kernel cannot read.

    Raises:
        MissingError: the map is not on a GPU, and kernels are not interpreted.
        UnsupportedError: its type is not one of :data:`DTYPES`.
    """
    if not (matrices.is_cuda or (INTERPRETED and matrices.device.type == "cpu")):
        raise MissingError(
            f"monitor kernel: expected a map on a CUDA device, got {matrices.device}; count it with reference.count, "
            "or set TRITON_INTERPRET=1 before Python starts"
        )
    if matrices.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise UnsupportedError(f"monitor kernel: expected one of {names}, got {matrices.dtype}")
