"""The format of each layer by its sizes: fewer bytes only help where bytes bind."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.methods.weight_only.config import Format
from lamina.errors import UsageError

BITS: dict[str, int] = {"dense": 16, "deft16": 16, "half": 16, "deft16q": 16}
"""Of a stored weight, where they are not 8; ``dense`` is bfloat16."""

FEW_ROWS = 16
"""Up to so many rows of bfloat16 a kernel of their own streams 8-bit weights."""


@dataclass(frozen=True)
class Rates:
    """What a machine reaches, measured on it; parts and factors are those of an H200.

    Args:
        read_gbs: of memory.
        product_gflops: of tensor cores.
        widening: by what factor a product is slower that widens its weights in registers.
        streaming, general: parts of ``read_gbs`` that stored weights are read at, with `FEW_ROWS` and with more.
        cached: how many times ``read_gbs`` inputs are read at that the cache holds.
        dense_start_us, start_us, general_start_us: what a product takes beside its work, by the library, and with
            stored weights, of `FEW_ROWS` and of more.

    Raises:
        UsageError: a rate is not positive.
    """

    read_gbs: float
    product_gflops: float
    widening: float = 2.3
    streaming: float = 0.9
    general: float = 0.65
    cached: float = 3.0
    dense_start_us: float = 0.0
    start_us: float = 0.0
    general_start_us: float = 0.0

    def __post_init__(self) -> None:
        rates = (self.read_gbs, self.product_gflops, self.streaming, self.general, self.cached)
        starts = self.dense_start_us, self.start_us, self.general_start_us
        if not (min(rates) > 0 and self.widening >= 1 and min(starts) >= 0):
            raise UsageError(f"rates: expected positive rates and a widening of at least 1, got {self}")


H200 = Rates(read_gbs=4450.0, product_gflops=800e3, dense_start_us=5.9, start_us=2.7, general_start_us=7.0)
"""Fitted to `benchmarks/fission_weights.py`, weights from memory."""


@dataclass(frozen=True)
class Choice:
    """``format``, or nothing where the dense layer is the faster, with the reason in numbers."""

    format: Format | None
    reason: str
    dense_us: float
    stored_us: float


def dense_us(rows: int, outputs: int, inputs: int, rates: Rates, bits: int = 16) -> float:
    """A product by the library, of numbers of ``bits``: the longer of its bytes and its operations."""
    moved = (outputs * inputs + rows * (inputs + outputs)) * bits / 8
    computed = 2 * rows * outputs * inputs / rates.product_gflops
    return rates.dense_start_us + max(moved / rates.read_gbs, computed) / 1e3


def stored_us(rows: int, outputs: int, inputs: int, bits: int, rates: Rates, dense_bits: int = 16) -> float:
    """A product with weights of ``bits``, and other numbers of ``dense_bits``.

    Few rows: the longer of bytes and operations; every eight rows more are read again by each 32 outputs. Many rows:
    one after the other, since widening leaves no slots to hide them in, and sums are added up in another pass.
    """
    weights = outputs * inputs
    moved, beside = weights * bits / 8, rows * (inputs + outputs) * dense_bits / 8
    computed = 2 * rows * weights / rates.product_gflops * rates.widening
    if rows <= FEW_ROWS and bits == 8 and dense_bits == 16:
        again = weights * (-(-rows // 8) - 1) / 2 / rates.cached
        return rates.start_us + max((moved / rates.streaming + beside + again) / rates.read_gbs, computed) / 1e3
    return rates.general_start_us + ((moved / rates.general + beside) / rates.read_gbs + computed) / 1e3


def choose(
    rows: int,
    outputs: int,
    inputs: int,
    rates: Rates,
    format: Format = "e4m3",
    margin: float = 0.02,
    dense_bits: int = 16,
) -> Choice:
    """The format, or dense unless that is slower by more than ``margin``; ``dense_bits`` is 32 for float32.

    Raises:
        UsageError: a size is not positive.
    """
    if min(rows, outputs, inputs) < 1:
        raise UsageError(f"sizes: expected at least 1 each, got {rows} x {outputs} x {inputs}")
    dense = dense_us(rows, outputs, inputs, rates, dense_bits)
    stored = stored_us(rows, outputs, inputs, BITS.get(format, 8), rates, dense_bits)
    wins = stored < dense * (1 - margin)
    said = f"{format}: predicted {stored:.3g} us {'<' if wins else 'not below'} dense {dense:.3g} us"
    return Choice(format if wins else None, said, dense, stored)
