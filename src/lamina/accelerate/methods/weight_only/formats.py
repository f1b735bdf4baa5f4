"""Weight formats, bit by bit: quantization and dequantization of a matrix of weights.

Packing rounds to nearest even (``deft16`` formats truncate), saturates formats without infinity, and refuses values out
of range. Unpacking is exact: each stored value is a float32.

Source: Hill et al., DeftNN, MICRO 2017, section 4 (Deft-16, Deft-16Q, 8-bit floats).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.methods.weight_only.config import FORMATS, Format, Scaling
from lamina.errors import UsageError

LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class Packed:
    """Quantized weights ``(outputs, inputs)``.

    ``codes`` is ``(outputs, inputs)`` in uint8 for 8-bit formats, int16 (the upper 16 bits) for ``deft16`` and float16
    for ``half``. For ``deft16q`` it is ``(outputs, ceil(inputs / 2))`` in int32: input ``k`` in the lower 16 bits of
    word ``k``, input ``k + ceil(inputs / 2)`` in its upper ones. ``scale (outputs,)`` holds powers of two in float32,
    the factors of dequantized values.
    """

    format: Format
    codes: Tensor
    scale: Tensor
    inputs: int


@dataclass(frozen=True)
class ErrorStatistics:
    """Relative errors of the dequantized weights, over nonzero weights."""

    mean: float
    rms: float
    worst: float


def pack(weight: Tensor, format: Format, scaling: Scaling = "none") -> Packed:
    """Quantize ``weight (outputs, inputs)`` with finite elements; of one on the meta device only the sizes.

    Raises:
        UsageError: another shape, an element that is not finite, or one out of the range of ``half``.
    """
    check_choice("format", format, FORMATS)
    if weight.dim() != 2 or not weight.is_floating_point():
        raise UsageError(f"weight: expected floats (outputs, inputs), got {weight.dtype} {tuple(weight.shape)}")
    wide = weight.detach().float()
    if not (wide.is_meta or bool(wide.isfinite().all())):
        raise UsageError("weight: expected finite elements, got NaN or infinity, which no weight format has")
    # deft16 formats have the range of float32 and need no scale.
    scaled_rows = scaling == "row" and not format.startswith("deft")
    scale = _row_scale(wide, largest(format)) if scaled_rows else wide.new_ones(len(wide))
    scaled = wide / scale[:, None]
    if format == "half":
        most = float(scaled.abs().max()) if scaled.numel() and not scaled.is_meta else 0.0
        if most >= LARGEST_HALF + 16:  # rounds to infinity
            raise UsageError(f"weight: half holds up to {LARGEST_HALF:g}, got {most:g}; scale it")
        return Packed(format, scaled.half(), scale, wide.shape[1])
    if format == "deft16":
        return Packed(format, _upper(scaled).to(torch.int16), scale, wide.shape[1])
    if format == "deft16q":
        half = -(-wide.shape[1] // 2)
        bits = _upper(torch.nn.functional.pad(scaled, (0, 2 * half - wide.shape[1])))
        return Packed(format, (bits[:, half:] << 16) | (bits[:, :half] & 0xFFFF), scale, wide.shape[1])
    return Packed(format, _encode(scaled, exponent_bits(format)), scale, wide.shape[1])


def unpack(packed: Packed) -> Tensor:
    """The dequantized weights: float32 ``(outputs, inputs)``."""
    codes = packed.codes
    if packed.format == "half":
        values = codes.float()
    elif packed.format == "deft16":
        values = (codes.int() << 16).view(torch.float32)
    elif packed.format == "deft16q":
        # The upper weight has the bits of the lower one in the low bits of its mantissa.
        values = torch.cat([(codes << 16).view(torch.float32), codes.view(torch.float32)], 1)[:, : packed.inputs]
    else:
        values = _decode(codes, exponent_bits(packed.format))
    return values * packed.scale[:, None]


def exponent_bits(format: Format) -> int:
    """N of ``eNmM``."""
    return int(format[1])


def bias(bits: int) -> int:
    """Exponent bias for ``bits`` exponent bits, as in IEEE 754."""
    return (1 << (bits - 1)) - 1


def largest(format: Format) -> float:
    """The largest value of ``half`` or of an 8-bit format."""
    return LARGEST_HALF if format == "half" else float(table(exponent_bits(format))[127])


@cache
def table(bits: int) -> Tensor:
    """Values of the 256 codes of an 8-bit format with ``bits`` exponent bits: float32 ``(256,)``, on the CPU.

    Exponent 0 is subnormal. No code is infinite or NaN: the largest exponent is an ordinary one.
    """
    mantissa_bits = 7 - bits
    codes = torch.arange(128, device="cpu")  # also with another default device, since this is cached
    exponent, mantissa = codes >> mantissa_bits, (codes & ((1 << mantissa_bits) - 1)).double() / (1 << mantissa_bits)
    normal = (1 + mantissa) * torch.exp2((exponent - bias(bits)).double())
    positive = torch.where(exponent == 0, mantissa * 2.0 ** (1 - bias(bits)), normal).float()
    return torch.cat([positive, -positive])


def errors(weight: Tensor, packed: Packed) -> ErrorStatistics:
    """Relative errors of the dequantized weights."""
    kept = weight != 0
    relative = ((unpack(packed).double() - weight.double()) / weight.double().abs())[kept] * weight.sign()[kept]
    if not relative.numel():
        return ErrorStatistics(0.0, 0.0, 0.0)
    return ErrorStatistics(float(relative.mean()), float(relative.square().mean().sqrt()), float(relative.abs().max()))


def _decode(codes: Tensor, bits: int) -> Tensor:
    """`table` by arithmetic: the bits shifted into a float32, whose exponent is too small by a constant."""
    wide = codes.int()
    moved = ((wide & 0x80) << 24) | ((wide & 0x7F) << (16 + bits))
    return moved.view(torch.float32) * 2.0 ** (127 - bias(bits))


def _encode(values: Tensor, bits: int) -> Tensor:
    """The nearest code of each value, ties to even. Magnitudes increase with their codes."""
    positive = table(bits)[:128].to(values.device).double()
    middle = (positive[1:] + positive[:-1]) / 2
    size = values.double().abs()
    below, above = torch.searchsorted(middle, size), torch.searchsorted(middle, size, right=True)
    code = torch.where(below % 2 == 0, below, above)  # they differ only in a tie
    return (code | (values.signbit().long() << 7)).to(torch.uint8)


def _upper(values: Tensor) -> Tensor:
    """The upper 16 bits of each float32, truncated: int32."""
    return values.contiguous().view(torch.int32) >> 16


def _row_scale(weight: Tensor, top: float) -> Tensor:
    """For each row the smallest power of two that, as a divisor, brings its amax to at most ``top``."""
    amax = weight.abs().amax(1) if weight.shape[1] else weight.new_zeros(len(weight))
    mantissa, exponent = torch.frexp(amax.double() / top)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-126, 127)
    return torch.where(amax == 0, 1.0, torch.exp2(exponent.double())).float()
