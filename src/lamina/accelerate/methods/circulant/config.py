"""What a block-circulant conversion is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError

Impl = Literal["auto", "reference", "kernel", "expand", "dense"]
"""How a product is computed: ``kernel`` in the frequency domain, ``expand`` from circulant tiles made on the fly,
``dense`` by the vendor library on the written-out matrix, ``reference`` by plain torch; ``auto`` chooses."""

IMPLS: tuple[Impl, ...] = get_args(Impl)

SMALLEST, LARGEST = 2, 256


@dataclass(frozen=True)
class Circulant:
    """Replace weight matrices by blocks that are circulant.

    Args:
        block_size: ``k``, from 2 to 256: one block of ``k * k`` weights is described by ``k`` of them.
        init: ``project`` takes the nearest block-circulant matrix, ``fresh`` draws new weights.
        rescale: scale a projection to the energy of the dense weights; an unstructured matrix keeps only ``1/k``.
        signs: change the signs of fixed, randomly drawn inputs of linear layers and convolutions (Cheng et al., "An
            exploration of parameter redundancy in deep networks with circulant projections", ICCV 2015, section 3.1).
            Rectified inputs have a mean, which a circulant block gives all of its outputs alike.
        impl: how the new layers compute.

    Raises:
        UsageError: naming what was expected.
    """

    block_size: int = 64
    init: Literal["project", "fresh"] = "project"
    rescale: bool = False
    signs: bool = False
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        check_impl(self.impl)
        check_choice("init", self.init, ("project", "fresh"))
        for name in ("rescale", "signs"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"{name}: expected true or false, got {value!r}")


def check_block_size(block_size: int) -> None:
    """Refuse what is no block size.

    Raises:
        UsageError: it is not a whole number from 2 to 256.
    """
    whole = isinstance(block_size, int) and not isinstance(block_size, bool)
    if not (whole and SMALLEST <= block_size <= LARGEST):
        raise UsageError(
            f"block_size: expected a whole number from {SMALLEST} to {LARGEST}, got {block_size!r}; "
            "16, 32 and 64 are usual"
        )


def check_impl(impl: str) -> None:
    """Refuse an unknown implementation.

    Raises:
        UsageError: with the nearest known name.
    """
    check_choice("impl", impl, IMPLS)
