"""The product as a PyTorch operator. Weights are not trained: gradients are of the input and the bias only."""

from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.methods.weight_only import kernels, stream
from lamina.accelerate.methods.weight_only.config import Format
from lamina.accelerate.methods.weight_only.formats import Packed, bias, exponent_bits, unpack
from lamina.accelerate.methods.weight_only.tiles import tile
from lamina.accelerate.runtime.eager_op import without_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, check_kernel_operand, index_type, precision


def dtypes(format: Format) -> tuple[torch.dtype, ...]:
    """Input dtypes of the kernel: those that represent the format exactly."""
    if format == "half":
        return torch.float32, torch.float16
    return (torch.float32,) if format == "deft16q" else (torch.float32, torch.bfloat16)


def check_input(x: Tensor, format: Format) -> None:
    """Refuse inputs that no kernel supports.

    Raises:
        MissingError: the tensor is not on a GPU, and kernels are not interpreted.
        UnsupportedError: its dtype does not represent the format.
    """
    check_kernel_operand(x, f"weight-only {format}", 'use impl="reference"', dtypes(format))


def run_linear(x: Tensor, codes: Tensor, scale: Tensor, bias_: Tensor | None, format: str, inputs: int) -> Tensor:
    """``x W^T + b`` of ``x (rows, inputs)`` and weights quantized in ``codes``: ``(rows, outputs)``."""
    check_input(x, _format(format))
    if stream.takes(x, codes, _format(format)):
        return stream.linear(x, codes, scale, bias_, _format(format))
    (rows, _), outputs = x.shape, len(codes)
    y = x.new_empty(rows, outputs)
    at = tile(outputs, rows, codes.shape[1], codes.itemsize, x.itemsize * (2 if format == "deft16q" else 1))
    partials = x.new_empty((at.split_k, outputs, rows) if at.split_k > 1 else 0, dtype=torch.float32)
    common = {"BIAS": bias_ is not None, "SPLIT_K": at.split_k, "BLOCK_M": at.block_m, "BLOCK_N": at.block_n}
    more = {"UPCAST": INTERPRETED, "INDEX": index_type(x, codes, y, partials)}
    offset = scale if bias_ is None else bias_.contiguous()
    operands = (codes.contiguous(), x, scale, offset, y, partials, outputs, rows, inputs)
    programs = -(-outputs // at.block_m) * -(-rows // at.block_n)
    product = {"BLOCK_K": at.block_k, "PRECISION": precision(), "num_warps": at.num_warps, "num_stages": at.num_stages}
    if format == "deft16q":
        pairs = (*operands, codes.shape[1], *x.stride())
        launch(kernels.pair_kernel, programs * at.split_k, x, *pairs, **common, **product, **more)
    else:
        dequantization = _dequantization(_format(format))
        launch(
            kernels.linear_kernel, programs * at.split_k, x,
            *operands, *x.stride(), **dequantization, **common, **product, **more,
        )  # fmt: skip
    if at.split_k > 1:
        launch(kernels.finish_kernel, programs, x, partials, scale, offset, y, outputs, rows, **common, **more)
    return y


linear = torch.library.custom_op("lamina::weight_only_linear", run_linear, mutates_args=())


def _dequantization(format: Format) -> dict[str, Any]:
    """Constexprs of dequantization. The shifted bits of an 8-bit code are a bfloat16, too small by ``2^lifted``."""
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
linear_eager = without_dispatch(linear, run_linear, _setup, _backward)


@register_flop_formula(torch.ops.lamina.weight_only_linear)
def _(x: torch.Size, codes: torch.Size, scale: torch.Size, bias_: Any, format: str, inputs: int, **kwargs: Any) -> int:
    return 2 * x[0] * codes[0] * inputs
