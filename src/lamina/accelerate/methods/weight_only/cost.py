"""The cost model of weight-only quantization: fewer bytes help only where a layer is memory-bound."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.methods.weight_only.config import Format
from lamina.errors import UsageError

BITS: dict[str, int] = {"dense": 16, "deft16": 16, "half": 16, "deft16q": 16}
"""Bits of a stored weight, where they are not 8; ``dense`` is bfloat16."""

FEW_ROWS = 16
"""Up to this number of rows, bfloat16 products with 8-bit weights have a streaming kernel."""


@dataclass(frozen=True)
class Rates:
    """Measured rates of a device; the defaults of ratios are those of an H200.

    Args:
        read_gbs: memory read bandwidth, GB/s.
        product_gflops: GEMM rate of the tensor cores, GFLOP/s.
        dequantization: the factor by which dequantizing weights in registers slows a product.
        streaming, general: fractions of ``read_gbs`` at which stored weights are read, up to `FEW_ROWS` and beyond.
        cached: L2 read bandwidth over ``read_gbs``.
        dense_start_us, start_us, general_start_us: fixed time of a product: by the library, and with stored weights up
            to `FEW_ROWS` and beyond.

    Raises:
        UsageError: a rate is not positive.
    """

    read_gbs: float
    product_gflops: float
    dequantization: float = 2.3
    streaming: float = 0.9
    general: float = 0.65
    cached: float = 3.0
    dense_start_us: float = 0.0
    start_us: float = 0.0
    general_start_us: float = 0.0

    def __post_init__(self) -> None:
        rates = (self.read_gbs, self.product_gflops, self.streaming, self.general, self.cached)
        starts = self.dense_start_us, self.start_us, self.general_start_us
        if not (min(rates) > 0 and self.dequantization >= 1 and min(starts) >= 0):
            raise UsageError(f"rates: expected positive rates and a dequantization of at least 1, got {self}")


H200 = Rates(read_gbs=4450.0, product_gflops=800e3, dense_start_us=5.9, start_us=2.7, general_start_us=7.0)
"""Fitted to `benchmarks/fission_weights.py`, weights not in L2."""


@dataclass(frozen=True)
class FormatSelection:
    """The format, ``None`` where the dense layer is faster, and the reason with both predicted times."""

    format: Format | None
    reason: str
    dense_us: float
    stored_us: float


def dense_us(rows: int, outputs: int, inputs: int, rates: Rates, bits: int = 16) -> float:
    """Microseconds of the library's product of ``bits``-wide operands: memory-bound or compute-bound."""
    moved = (outputs * inputs + rows * (inputs + outputs)) * bits / 8
    computed = 2 * rows * outputs * inputs / rates.product_gflops
    return rates.dense_start_us + max(moved / rates.read_gbs, computed) / 1e3


def stored_us(rows: int, outputs: int, inputs: int, bits: int, rates: Rates, dense_bits: int = 16) -> float:
    """Microseconds of a product with weights of ``bits`` and other operands of ``dense_bits``.

    Up to `FEW_ROWS` rows: the larger of memory time and compute time; a block of 32 outputs reads the inputs again for
    each further eight rows. Beyond: their sum, since dequantization leaves no issue slots to overlap them, and split-K
    partials are reduced in another pass.
    """
    weights = outputs * inputs
    moved, activations = weights * bits / 8, rows * (inputs + outputs) * dense_bits / 8
    computed = 2 * rows * weights / rates.product_gflops * rates.dequantization
    if rows <= FEW_ROWS and bits == 8 and dense_bits == 16:
        reread = weights * (-(-rows // 8) - 1) / 2 / rates.cached
        return rates.start_us + max((moved / rates.streaming + activations + reread) / rates.read_gbs, computed) / 1e3
    return rates.general_start_us + ((moved / rates.general + activations) / rates.read_gbs + computed) / 1e3


def choose(
    rows: int,
    outputs: int,
    inputs: int,
    rates: Rates,
    format: Format = "e4m3",
    margin: float = 0.02,
    dense_bits: int = 16,
) -> FormatSelection:
    """The format, or dense unless the predicted saving exceeds ``margin`` of the dense time.

    Args:
        rows, outputs, inputs: ``M, N, K`` of the layer's GEMM.
        rates: of the device.
        format: of the stored weights.
        margin: the fraction of the dense time that must be saved.
        dense_bits: 16, or 32 for float32 layers.

    Raises:
        UsageError: a size is not positive.
    """
    if min(rows, outputs, inputs) < 1:
        raise UsageError(f"sizes: expected at least 1 each, got {rows} x {outputs} x {inputs}")
    dense = dense_us(rows, outputs, inputs, rates, dense_bits)
    stored = stored_us(rows, outputs, inputs, BITS.get(format, 8), rates, dense_bits)
    wins = stored < dense * (1 - margin)
    reason = f"{format}: predicted {stored:.3g} us {'<' if wins else 'not below'} dense {dense:.3g} us"
    return FormatSelection(format if wins else None, reason, dense, stored)
