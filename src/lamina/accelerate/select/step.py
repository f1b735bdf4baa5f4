"""A step of a layer, or of a whole model, as one callable in the mode that the model will run in.

Forward, and in training backward; of a whole model also what a training loop adds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lamina.accelerate.select.observed import LayerCall
from lamina.record import Mode
from lamina.spec.plan import COMPILED

COPIES = 128
"""Copies of a network that a process may compile."""


def layer_step(
    module: nn.Module, call: LayerCall, mode: Mode, training: bool, whole: bool = False
) -> Callable[[], object]:
    """The step of a layer on the inputs that it meets in its model.

    Args:
        module: the layer, or a candidate in its place.
        call: its inputs.
        mode: ``compiled`` wraps the layer in ``torch.compile``, ``reduce-overhead`` in its mode of that name; ``graph``
            and ``compiled-graph`` steps are for a clock that captures them.
        training: whether a step has a backward pass: gradients of all parameters, and of the inputs where the model
            computes them.
        whole: whether a training step also has a loss, and an update of copies of the parameters by SGD. Their launch
            overhead is the same for every candidate, but decides whether that of the model is hidden by the GPU.
    """
    run: Callable[..., Any] = compiled(module, mode) if mode in COMPILED else module
    leaves, args, kwargs = call.arguments()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad] + parameters
    device = next((leaf.device.type for leaf in call.tensors), "cpu")
    gradients: list[Tensor] = []

    def autocast() -> AbstractContextManager[object]:
        # Without its cache: a cast weight that an outer region keeps would be left out of the time.
        return nullcontext() if call.autocast is None else torch.autocast(device, call.autocast, cache_enabled=False)

    def forward() -> object:
        with torch.no_grad(), autocast():
            return run(*args, **kwargs)

    def outputs() -> list[Tensor]:
        with autocast():
            return [y for y in tree_leaves(run(*args, **kwargs)) if isinstance(y, Tensor) and y.requires_grad]

    def step() -> object:
        with torch.enable_grad():
            found = outputs()
            if not gradients:
                gradients.extend(map(_gradient, found))
            return torch.autograd.grad(found, wanted, gradients, allow_unused=True)

    def whole_step(update: _Update) -> object:
        update.forget()
        with torch.enable_grad():
            loss = plain_loss(outputs())
            found = torch.autograd.grad(loss, wanted, allow_unused=True)
        update(found[len(found) - len(parameters) :])
        return found

    one: Callable[[], object] = step if training and wanted else forward
    if whole and training and parameters and (update := _update_of(parameters)) is not None:
        one = partial(whole_step, update)
    return forgetting(one) if mode == "reduce-overhead" else one


def compiled(model: nn.Module, mode: str) -> nn.Module:
    """The model by ``torch.compile`` in a mode of `lamina.spec.plan.COMPILED`, for inputs of fixed shapes."""
    # Every copy of a network counts as a recompilation of its code, and beyond the limit it runs in eager mode.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COPIES)
    how = mode if mode == "reduce-overhead" else "default"
    found: nn.Module = torch.compile(model, mode=how, dynamic=False)  # type: ignore[assignment]
    return found


def forgetting(step: Callable[[], object]) -> Callable[[], object]:
    """A step after whose failure the compiler forgets all networks.

    One that fails while it warms up leaves CUDA graph trees without the end of that, and they refuse every network that
    runs afterwards.
    """

    def call() -> object:
        try:
            return step()
        except Exception:
            torch.compiler.reset()
            raise

    return call


def forget_compiled() -> None:
    """Let the compiler forget the networks that it knows, before others are timed; theirs compile again when they run.

    Networks with ``mode="reduce-overhead"`` share one tree of CUDA graphs and its memory, so that what one takes may
    depend on the others.
    """
    torch.compiler.reset()


class _Update:
    """The update of a training loop on copies of the parameters: those of the user's model stay."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.copies = [parameter.detach().clone() for parameter in parameters]
        fused = all(one.is_cuda and one.is_floating_point() for one in self.copies)
        self.optimizer = torch.optim.SGD(self.copies, lr=1e-3, fused=fused)

    def forget(self) -> None:
        """Free the gradients, as a loop does before its next forward pass."""
        self.optimizer.zero_grad(set_to_none=True)

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> None:
        for copy, gradient in zip(self.copies, gradients, strict=True):
            if gradient is not None and not gradient.is_sparse:
                copy.grad = _laid_out(gradient, copy)
        self.optimizer.step()


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient with the strides of its parameter, as autograd accumulates it; strides of size 1 mean nothing."""
    if gradient.stride() == like.stride():
        return gradient
    strides = zip(like.shape, gradient.stride(), like.stride(), strict=True)
    if all(size == 1 or mine == wanted for size, mine, wanted in strides):
        return gradient.as_strided(like.shape, like.stride())
    return torch.empty_like(like).copy_(gradient)


def _update_of(parameters: list[nn.Parameter]) -> _Update | None:
    """The update of copies; None if memory has no room for them."""
    try:
        return _Update(parameters)
    except torch.OutOfMemoryError:
        return None


def plain_loss(outputs: Any) -> Tensor:
    """The mean square of each output that has gradients, summed, by as few operators as a loss has.

    Each operator adds its launch overhead to the step of every candidate.
    """
    tensors = [y for y in tree_leaves(outputs) if isinstance(y, Tensor) and (y.is_floating_point() or y.is_complex())]
    squares = []
    for tensor in tensors:
        y = (tensor.abs() if tensor.is_complex() else tensor).float()
        squares.append(F.mse_loss(y, y.new_zeros(()).expand_as(y)))
    return squares[0] if len(squares) == 1 else torch.stack(squares).sum()


def _gradient(y: Tensor) -> Tensor:
    """Normal random values as the loss's gradient, from a generator of their own: the user's is left alone."""
    own = torch.Generator(y.device).manual_seed(0)
    return torch.empty_like(y).normal_(generator=own)
