"""What a data fission is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lamina.accelerate.common.choices import check_choice

Format = Literal["half", "deft16", "deft16q", "e1m6", "e2m5", "e3m4", "e4m3", "e5m2", "e6m1", "e7m0"]
"""``half`` is IEEE binary16; ``deft16`` the upper 16 bits of a float32; ``deft16q`` the same, two to a word, of which
the upper one is read without a mask; ``eNmM`` 8 bits with N of exponent, all codes finite."""

FORMATS: tuple[Format, ...] = get_args(Format)

Impl = Literal["auto", "reference", "kernel"]
"""``kernel`` widens in registers; ``reference`` writes the wide weights to memory before an ordinary product, which is
the definition and, on a GPU, off-chip packing; ``auto`` is ``kernel`` where one can run."""

IMPLS: tuple[Impl, ...] = get_args(Impl)

Scaling = Literal["row", "none"]
"""``row`` gives each output a power of two that brings its largest weight to the top of the format's
range; the upper halves have float32's, and need none."""

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


@dataclass(frozen=True)
class WeightOnly:
    """Store the weights of linear layers and convolutions in another format.

    Args:
        format: how a weight is stored.
        scaling: whether each output has its own power of two.
        impl: how the new layers compute.

    Raises:
        UsageError: naming what was expected.
    """

    format: Format = "e4m3"
    scaling: Scaling = "row"
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        check_choice("format", self.format, FORMATS)
        check_choice("impl", self.impl, IMPLS)
        check_choice("scaling", self.scaling, SCALINGS)
