"""The format of each layer by its sizes: fewer bytes only help where bytes bind."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.fission.config import Format
from lamina.errors import UsageError

BITS: dict[str, int] = {"dense": 16, "deft16": 16, "half": 16, "deft16q": 16}
"""Of a stored weight, where they are not 8; ``dense`` is bfloat16."""


@dataclass(frozen=True)
class Rates:
    """What a machine reaches, measured on it.

    ``read_gbs`` of the weights' memory, ``product_gflops`` of tensor cores, and by what part a product is slower that
    widens its weights in registers (``widening``, at least 1).
    """

    read_gbs: float
    product_gflops: float
    widening: float = 1.25

    def __post_init__(self) -> None:
        if not (self.read_gbs > 0 and self.product_gflops > 0 and self.widening >= 1):
            raise UsageError(f"rates: expected positive rates and a widening of at least 1, got {self}")


@dataclass(frozen=True)
class Choice:
    """``format``, or nothing where the dense layer is the faster, with the reason in numbers."""

    format: Format | None
    reason: str
    dense_us: float
    stored_us: float


def predicted_us(rows: int, outputs: int, inputs: int, bits: int, rates: Rates, dense_bits: int = 16) -> float:
    """A product of ``rows`` rows of ``dense_bits`` each number: the longer of its bytes and its operations."""
    moved = outputs * inputs * bits / 8 + rows * (inputs + outputs) * dense_bits / 8
    computed = 2 * rows * outputs * inputs / rates.product_gflops * (rates.widening if bits < dense_bits else 1.0)
    return max(moved / rates.read_gbs, computed) / 1e3


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
    dense = predicted_us(rows, outputs, inputs, dense_bits, rates, dense_bits)
    stored = predicted_us(rows, outputs, inputs, BITS.get(format, 8), rates, dense_bits)
    wins = stored < dense * (1 - margin)
    said = f"{format}: predicted {stored:.3g} us {'<' if wins else 'not below'} dense {dense:.3g} us"
    return Choice(format if wins else None, said, dense, stored)
