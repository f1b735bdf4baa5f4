"""What Triton kernels can compute with, and the options that launches share."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamina.accelerate.common.operands import transformed
from lamina.accelerate.runtime.target_info import supports_pdl
from lamina.accelerate.runtime.triton_utils import rounded
from lamina.errors import MissingError, UnsupportedError

TRITON_VERSION: str = triton.__version__

INTERPRETED = not isinstance(rounded, triton.JITFunction)
"""Whether kernels run in Triton's interpreter, on the CPU."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of most kernels."""

SMALL_TENSOR_BYTES = 2**18
"""A kernel whose tensors are all at most this large leaves room on the GPU for the next one."""

GROUP_SIZE_M = 8
"""Rows of tiles that are computed together before the next columns, so that neighbours find operands in L2."""


def check_kernel_operand(tensor: Tensor, method: str, alternative: str, dtypes: Sequence[torch.dtype] = DTYPES) -> None:
    """Refuse a tensor that no kernel can compute with.

    Args:
        tensor: an operand.
        method: whose kernels these are, for messages.
        alternative: what to do without kernels, in the imperative.
        dtypes: that the kernels have.

    Raises:
        MissingError: the tensor is not on a GPU, and kernels are not interpreted.
        UnsupportedError: its dtype is not one of ``dtypes``, or a transform of ``torch.func`` is active.
    """
    if transformed():
        raise UnsupportedError(
            f"{method} kernels: expected no transform of torch.func, which cannot see them; {alternative}"
        )
    if not (tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu")):
        raise MissingError(
            f"{method} kernels: expected tensors on a CUDA device, got {tensor.device}; move them there, {alternative},"
            " or set TRITON_INTERPRET=1 before Python starts"
        )
    if tensor.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise UnsupportedError(f"{method} kernels: expected one of {names}, got {tensor.dtype}; {alternative}")


def launch_with_triton(kernel: Any, grid: tuple[int, ...], tensor: Tensor, *args: Any, **constants: Any) -> None:
    """Launch a kernel on the tensor's device through Triton's public interface.

    Raises:
        UnsupportedError: the device has too little shared memory or too few registers for the tile.
    """
    with torch.cuda.device_of(tensor):
        try:
            kernel[grid](*args, **constants)
        except triton.runtime.errors.OutOfResources as error:
            raise UnsupportedError(f"expected a tile that fits the device: {error}") from error


def compiling_in(pool: Executor) -> AbstractContextManager[object]:
    """Within it, kernels that are compiled and not launched are compiled by a pool, all of them at the end."""
    mode: AbstractContextManager[object] = triton.AsyncCompileMode(pool, ignore_errors=True)
    return mode


def missing_names() -> list[str]:
    """Private names of Triton that `launch` uses and this version has not."""
    names = {triton.JITFunction: ("warmup",), triton.compiler.CompiledKernel: ("run",)}
    return [f"{owner.__name__}.{name}" for owner, of in names.items() for name in of if not hasattr(owner, name)]


def pdl_options(*tensors: Tensor) -> dict[str, int]:
    """Options of a kernel that calls `griddepcontrol`: programmatic dependent launch where the device has it.

    It hides most of the launch latency, which dominates small kernels.
    """
    if not supports_pdl(tensors[0].device):
        return {"PDL": 0}
    return {"PDL": 2 if max(tensor.nbytes for tensor in tensors) <= SMALL_TENSOR_BYTES else 1, "launch_pdl": True}


def precision() -> str:
    """``tl.dot``'s input precision for float32, after ``torch.backends.cuda.matmul``: TF32, or 3xTF32 in its place."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def index_type(*tensors: Tensor) -> Any:
    """The integer type of offsets into these tensors."""
    large = (x for x in tensors if x.untyped_storage().nbytes() > 2**31)  # a quick test: no other needs 64 bits
    return tl.int64 if any(reach(x) > 2**31 for x in large) else tl.int32


def reach(x: Tensor) -> int:
    """One more than the largest offset within a tensor: strides may reach further than there are elements."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
