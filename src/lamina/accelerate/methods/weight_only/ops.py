"""The product as a PyTorch operator. Weights are stored, not trained: gradients go to the input and the bias alone."""

from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.methods.weight_only import kernels, stream
from lamina.accelerate.methods.weight_only.config import Format
from lamina.accelerate.methods.weight_only.formats import Packed, bias, exponent_bits, unpack
from lamina.accelerate.methods.weight_only.tiles import tile
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, check_kernel_operand, index_type, precision


def dtypes(format: Format) -> tuple[torch.dtype, ...]:
    """Types of input that a kernel takes: those that hold what is stored."""
    if format == "half":
        return torch.float32, torch.float16
    return (torch.float32,) if format == "deft16q" else (torch.float32, torch.bfloat16)


def check_input(x: Tensor, format: Format) -> None:
    """Refuse what no kernel can read.

    Raises:
        MissingError: the tensor is not on a GPU, and kernels are not interpreted.
        UnsupportedError: its type does not hold what the format stores.
    """
    check_kernel_operand(x, f"{format} fission", 'use impl="reference"', dtypes(format))


@torch.library.custom_op("lamina::weight_only_linear", mutates_args=())
def linear(x: Tensor, codes: Tensor, scale: Tensor, bias_: Tensor | None, format: str, inputs: int) -> Tensor:
    """``x W^T + b`` of ``x (rows, inputs)`` and weights stored in ``codes``: ``(rows, outputs)``."""
    check_input(x, _format(format))
    if stream.takes(x, codes, _format(format)):
        return stream.linear(x, codes, scale, bias_, _format(format))
    (rows, _), outputs = x.shape, len(codes)
    y = x.new_empty(rows, outputs)
    at = tile(outputs, rows, codes.shape[1], codes.itemsize, x.itemsize * (2 if format == "deft16q" else 1))
    shares = x.new_empty((at.splits, outputs, rows) if at.splits > 1 else 0, dtype=torch.float32)
    common = {"BIAS": bias_ is not None, "SPLITS": at.splits, "BO": at.outputs, "BR": at.rows}
    switches = {"UPCAST": INTERPRETED, "INDEX": index_type(x, codes, y, shares)}
    offset = scale if bias_ is None else bias_.contiguous()
    operands = (codes.contiguous(), x, scale, offset, y, shares, outputs, rows, inputs)
    programs = -(-outputs // at.outputs) * -(-rows // at.rows)
    product = {"BK": at.depth, "PRECISION": precision(), "num_warps": at.warps, "num_stages": at.stages}
    if format == "deft16q":
        pairs = (*operands, codes.shape[1], *x.stride())
        launch(kernels.pair_kernel, programs * at.splits, x, *pairs, **common, **product, **switches)
    else:
        reading = _reading(_format(format))
        launch(
            kernels.linear_kernel, programs * at.splits, x,
            *operands, *x.stride(), **reading, **common, **product, **switches,
        )  # fmt: skip
    if at.splits > 1:
        launch(kernels.finish_kernel, programs, x, shares, scale, offset, y, outputs, rows, **common, **switches)
    return y


def _reading(format: Format) -> dict[str, Any]:
    """How codes are read. The bits of an 8-bit code, moved, are a bfloat16 that is too small by ``2^lifted``."""
    if format in ("half", "deft16"):
        return {"FORMAT": "half" if format == "half" else "upper", "BITS": 0, "LIFT": 1.0, "LOWER": 1.0}
    bits = exponent_bits(format)
    lifted = 127 - bias(bits)
    return {"FORMAT": "narrow", "BITS": bits, "LIFT": 2.0 ** (lifted // 2), "LOWER": 2.0 ** (lifted - lifted // 2)}


def _format(name: str) -> Format:
    (found,) = [format for format in get_args(Format) if format == name]
    result: Format = found
    return result


@linear.register_fake
def _(x: Tensor, codes: Tensor, scale: Tensor, bias_: Tensor | None, format: str, inputs: int) -> Tensor:
    return x.new_empty(x.shape[0], codes.shape[0])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, codes, scale, bias_, ctx.format, ctx.inputs = inputs
    ctx.biased, ctx.dtype = None if bias_ is None else bias_.dtype, x.dtype
    ctx.save_for_backward(codes, scale)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    codes, scale = ctx.saved_tensors
    wide = unpack(Packed(_format(ctx.format), codes, scale, ctx.inputs)).to(ctx.dtype)
    return dy @ wide, None, None, None if ctx.biased is None else dy.sum(0).to(ctx.biased), None, None


linear.register_autograd(_backward, setup_context=_setup)


@register_flop_formula(torch.ops.lamina.weight_only_linear)
def _(x: torch.Size, codes: torch.Size, scale: torch.Size, bias_: Any, format: str, inputs: int, **kwargs: Any) -> int:
    return 2 * x[0] * codes[0] * inputs
