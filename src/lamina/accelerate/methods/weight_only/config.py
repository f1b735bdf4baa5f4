"""Configuration of weight-only quantization, after DeftNN's near-compute data fission (section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lamina.accelerate.common.choices import check_choice

Format = Literal["half", "deft16", "deft16q", "e1m6", "e2m5", "e3m4", "e4m3", "e5m2", "e6m1", "e7m0"]
"""``half`` is IEEE binary16. ``deft16`` is the upper 16 bits of a float32. ``deft16q`` packs two of these into a word
and reads the upper one without a mask, so the bits of the lower one stay in it. ``eNmM`` has 8 bits, N of them
exponent; all codes are finite, unlike those of ``float8_e4m3fn`` and ``float8_e5m2``."""

FORMATS: tuple[Format, ...] = get_args(Format)

Impl = Literal["auto", "reference", "kernel"]
"""``kernel`` dequantizes in registers. ``reference``, the definition, writes dequantized weights to memory in front of
an ordinary product (off-chip packing). ``auto`` is ``kernel`` where one can run."""

IMPLS: tuple[Impl, ...] = get_args(Impl)

Scaling = Literal["row", "none"]
"""Granularity of the scale: ``row`` is per output channel, a power of two that maps the amax of its weights to the top
of the format's range. ``deft16`` formats have the range of float32 and no scale."""

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


@dataclass(frozen=True)
class WeightOnly:
    """Quantize the weights of linear layers and convolutions, and dequantize them in registers.

    Args:
        format: of a stored weight.
        scaling: granularity of the scale.
        impl: the implementation of the new layers.

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
