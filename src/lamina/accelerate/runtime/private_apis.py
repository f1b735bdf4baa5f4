"""Whether the private interfaces of PyTorch and Triton that cached launches use are those they were tested with.

The launch cache and `launch` find compiled kernels, streams and operators through names that PyTorch and Triton may
change in any release. With untested versions, or where a name is missing, lamina launches kernels through Triton and
calls operators through PyTorch's dispatcher: the results are the same, the launch overhead is larger.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch

from lamina.accelerate.common.operands import HAS_TRITON

if HAS_TRITON:
    from lamina.accelerate.runtime import triton_ops

Version = tuple[int, int]

TESTED: dict[str, tuple[Version, Version]] = {"PyTorch": ((2, 11), (2, 13)), "Triton": ((3, 6), (3, 7))}
"""The oldest and the newest tested release of each."""

_TORCH_NAMES = ("_are_functorch_transforms_active", "_has_storage", "_len_torch_dispatch_stack")
_CUDA_NAMES = ("_cuda_getCurrentRawStream",)


@cache
def supported() -> bool:
    """Whether launches may be cached. Warns once, with the versions, if not; without Triton there are none."""
    if not HAS_TRITON:
        return False
    reason = unsupported_reason()
    if reason is not None:
        warnings.warn(f"{reason}; kernels give the same results with a larger launch overhead", stacklevel=2)
    return reason is None


def unsupported_reason() -> str | None:
    """Why launches are not cached, or nothing."""
    versions = {"PyTorch": torch.__version__, "Triton": triton_ops.TRITON_VERSION}
    found = " and ".join(f"{name} {version}" for name, version in versions.items())
    if not all(low <= release(versions[name]) <= high for name, (low, high) in TESTED.items()):
        tested = " and ".join(f"{name} {_text(low)} to {_text(high)}" for name, (low, high) in TESTED.items())
        return f"launches are not cached: expected {tested}, got {found}"
    names = (*_TORCH_NAMES, *(_CUDA_NAMES if torch.backends.cuda.is_built() else ()))
    missing = [f"torch._C.{name}" for name in names if not hasattr(torch._C, name)] + triton_ops.missing_names()
    if missing:
        return f"launches are not cached: {found} lack {', '.join(missing)}"
    return None


def release(version: str) -> Version:
    """Major and minor number of a version such as ``2.13.0+cu130``; zeros if it has none."""
    major, minor, *_ = [*version.split("."), "0", "0"]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def raw_stream(index: int) -> int:
    """The address of PyTorch's current stream on a CUDA device."""
    if supported():
        return int(torch._C._cuda_getCurrentRawStream(index))
    return int(torch.cuda.current_stream(index).cuda_stream)


def _text(version: Version) -> str:
    return ".".join(map(str, version))
