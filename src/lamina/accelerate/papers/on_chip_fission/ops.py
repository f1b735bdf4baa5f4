"""The product by a kernel, with the gradients of the definition: for eager mode, and as a PyTorch operator."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry, Pair
from lamina.accelerate.papers.on_chip_fission import reference, simt
from lamina.accelerate.papers.on_chip_fission.config import OnChip


def launch(x: Tensor, weight: Tensor, index: Tensor | None, steps: list[int], format: str, tile: int) -> Tensor:
    """``x (rows, inputs)`` to ``(rows, outputs)``, or by ``steps`` ``x (N, C, H, W)`` to ``(N, outputs, H', W')``.

    Args:
        x, weight: float32.
        index: the inputs or channels that the weight multiplies.
        steps: stride, padding and dilation of a convolution, each for height and width; empty for a linear layer.
        format, tile: see `OnChipFission`.
    """
    x, weight = x.contiguous(), weight.contiguous()
    options: dict[str, Any] = {"format": format, "tile": tile}
    if steps:
        windows = _windows(steps)
        taps = None
        if index is not None:
            kernel = weight.shape[2], weight.shape[3]
            taps = simt.taps(x.shape[1], x.shape[2], x.shape[3], kernel, windows[2], x.device, index)
        return simt.conv2d(x, weight, *windows, taps=taps, **options)
    if index is None:
        return simt.linear(x, weight, **options)
    taps = simt.taps(x.shape[1], 1, 1, (1, 1), (1, 1), x.device, index)
    return simt.conv2d(x[..., None, None], weight[..., None, None], taps=taps, **options).flatten(1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, index, steps, format, _ = inputs
    ctx.save_for_backward(x, weight, index)
    ctx.steps, ctx.format = steps, format


@torch.autograd.function.once_differentiable
def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    *operands, index = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:2]
    with torch.enable_grad():
        leaves = [one.detach().requires_grad_(needed) for one, needed in zip(operands, wanted, strict=True)]
        y = _definition(ctx.steps, ctx.format)(*leaves, None, index)
    found = iter(torch.autograd.grad(y, [one for one in leaves if one.requires_grad], dy))
    return *(next(found) if needed else None for needed in wanted), None, None, None, None


def _definition(steps: list[int], format: OnChip) -> Callable[..., Tensor]:
    if not steps:
        return partial(reference.linear, format=format)
    stride, padding, dilation = _windows(steps)
    return lambda x, weight, bias, index: reference.conv2d(x, weight, bias, index, format, stride, padding, dilation)


def _windows(steps: list[int]) -> tuple[Pair, Pair, Pair]:
    pairs = tuple(zip(steps[::2], steps[1::2], strict=True))
    return cast(tuple[Pair, Pair, Pair], pairs)


class Product(torch.autograd.Function):
    """`launch` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        y = launch(*inputs)
        _save(ctx, inputs, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _gradient(ctx, *gradients)


product = torch.library.custom_op("lamina::on_chip_product", launch, mutates_args=())
"""`launch` as an operator, which ``torch.compile`` needs: it cannot trace launches."""


@product.register_fake
def _(x: Tensor, weight: Tensor, index: Tensor | None, steps: list[int], format: str, tile: int) -> Tensor:
    if not steps:
        return x.new_empty(x.shape[0], weight.shape[0])
    size = Conv2dGeometry.of(weight.shape[2:], *_windows(steps)).output_size(x.shape[2], x.shape[3])
    return x.new_empty(x.shape[0], weight.shape[0], *size)


product.register_autograd(_gradient, setup_context=_save)
