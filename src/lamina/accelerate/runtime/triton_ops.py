"""What Triton kernels can read, and what every launch of one is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamina.accelerate.common.operands import transformed
from lamina.accelerate.runtime.target_info import can_wait
from lamina.accelerate.runtime.triton_utils import rounded
from lamina.errors import MissingError, UnsupportedError

INTERPRETED = not isinstance(rounded, triton.JITFunction)
"""Whether kernels run in Triton's interpreter, on the CPU."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What most kernels take."""

SMALL = 2**18
"""Bytes in the largest tensor of a kernel that leaves room for another."""

SHARING = 8
"""Tiles that programs go down before they go on to the right, so that neighbours find operands in the cache."""


def check_device(tensor: Tensor, cell: str, instead: str, dtypes: Sequence[torch.dtype] = DTYPES) -> None:
    """Refuse what no kernel can read.

    Args:
        tensor: what it would read.
        cell: whose kernels these are.
        instead: what to do without them, as an order.
        dtypes: that they take.

    Raises:
        MissingError: the tensor is not on a GPU, and kernels are not interpreted.
        UnsupportedError: its type is not one of ``dtypes``, or a transform of ``torch.func`` is on.
    """
    if transformed():
        raise UnsupportedError(f"{cell} kernels: expected no transform of torch.func, which cannot see them; {instead}")
    if not (tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu")):
        raise MissingError(
            f"{cell} kernels: expected tensors on a CUDA device, got {tensor.device}; move them there, {instead}, "
            "or set TRITON_INTERPRET=1 before Python starts"
        )
    if tensor.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise UnsupportedError(f"{cell} kernels: expected one of {names}, got {tensor.dtype}; {instead}")


def by_triton(kernel: Any, grid: tuple[int, ...], tensor: Tensor, *args: Any, **switches: Any) -> None:
    """Run a kernel on the tensor's device the way that Triton does.

    Raises:
        UnsupportedError: the device has not the memory that a tile takes.
    """
    with torch.cuda.device_of(tensor):
        try:
            kernel[grid](*args, **switches)
        except triton.runtime.errors.OutOfResources as error:
            raise UnsupportedError(f"expected a tile that fits the device: {error}") from error


def early(*tensors: Tensor) -> dict[str, int]:
    """Switches of a kernel on these that does `wait`: where the device can, it is launched while those in front end.

    It hides most of a launch, which is what small kernels consist of.
    """
    if not can_wait(tensors[0].device):
        return {"EARLY": 0}
    return {"EARLY": 2 if max(tensor.nbytes for tensor in tensors) <= SMALL else 1, "launch_pdl": True}


def precision() -> str:
    """How float32 is multiplied: as ``torch.backends.cuda.matmul`` says; three TF32 products keep its accuracy."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def index_type(*tensors: Tensor) -> Any:
    """The type of addresses in these tensors."""
    far = (x for x in tensors if x.untyped_storage().nbytes() > 2**31)  # no other reaches that far, which is soon said
    return tl.int64 if any(reach(x) > 2**31 for x in far) else tl.int32


def reach(x: Tensor) -> int:
    """One more than the largest offset within a tensor: strides may reach further than there are elements."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
