"""What a fusion is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError

Impl = Literal["auto", "reference", "kernel", "cublaslt"]
"""How a fused layer is computed: ``kernel`` by Triton, ``cublaslt`` by the vendor library's own epilogue,
``reference`` by plain torch, one operator after the other; ``auto`` chooses."""

IMPLS: tuple[Impl, ...] = get_args(Impl)

Activation = Literal["relu", "tanh", "sigmoid", "gelu", "gelu_tanh"]
"""``gelu`` is the exact one, by the error function; ``gelu_tanh`` its approximation."""

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


@dataclass(frozen=True)
class Fusion:
    """Fuse linear layers and convolutions with what follows them.

    Args:
        impl: how the new layers compute. Convolutions have no ``cublaslt``: ``auto`` is meant for them there.
        pool: whether a convolution takes in a max pooling that follows its ReLU.
        l1_bypass: whether kernels load past the L1 cache (``.cg``).

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
