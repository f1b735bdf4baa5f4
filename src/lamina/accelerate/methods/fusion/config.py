"""Configuration of fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lamina.accelerate.common.activation_names import Activation
from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError

Impl = Literal["auto", "reference", "kernel", "cublaslt"]
"""``kernel`` is a Triton kernel, ``cublaslt`` the epilogue of the vendor library's GEMM, ``reference`` plain PyTorch,
one operator after the other. ``auto`` selects one."""

IMPLS: tuple[Impl, ...] = get_args(Impl)

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


@dataclass(frozen=True)
class Fusion:
    """Fuse linear layers with their activation, and convolutions with bias, ReLU and max pooling.

    Args:
        impl: the implementation of the new layers. Convolutions have no ``cublaslt``; they use ``auto`` in its place.
        pool: whether the max pooling behind a convolution's ReLU is fused too.
        l1_bypass: whether kernels' loads bypass the L1 cache (``.cg``).

    Raises:
        UsageError: naming what was expected.
    """

    impl: Impl = "auto"
    pool: bool = True
    l1_bypass: bool = False

    def __post_init__(self) -> None:
        check_choice("impl", self.impl, IMPLS)
        for name in ("pool", "l1_bypass"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}: expected true or false, got {getattr(self, name)!r}")
