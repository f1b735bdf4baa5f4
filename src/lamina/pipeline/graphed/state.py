"""State that a step changes, so that it can be run several times from the same start and compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lamina.errors import CheckError

NOISE = 4.0
"""How many times farther from eager mode than a second eager run a replay may be."""

EXACT = 1e-5
"""Relative distance that is always allowed: a sum in another order."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers whose products follow the precision of cuDNN's convolutions."""


class State:
    """A copy of tensors and of the states of the random number generators."""

    def __init__(self, tensors: Iterable[Tensor], device: torch.device):
        self.tensors = [*tensors]
        self.values = [tensor.detach().clone() for tensor in self.tensors]
        self.device = device
        self.random = torch.get_rng_state()
        self.device_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @torch.no_grad()
    def restore(self) -> None:
        """Set the tensors, in place, and the generators to what they were."""
        for tensor, value in zip(self.tensors, self.values, strict=True):
            tensor.copy_(value)
        torch.set_rng_state(self.random)
        if self.device_random is not None:
            torch.cuda.set_rng_state(self.device_random, self.device)

    @torch.no_grad()
    def changes(self) -> list[Tensor]:
        """By how much each tensor has changed since: an update is small beside what it updates."""
        pairs = zip(self.tensors, self.values, strict=True)
        return [tensor - value if tensor.is_floating_point() else tensor.clone() for tensor, value in pairs]


@torch.no_grad()
def distance(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Relative L2 distance of lists of tensors, of all floating-point values together."""
    error = norm = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if b.is_floating_point() or b.is_complex():
            error += float((a - b).abs().double().square().sum())
            norm += float(b.abs().double().square().sum())
        elif not torch.equal(a, b):
            return float("inf")
    return (error / norm) ** 0.5 if norm else float("inf") if error else 0.0


def rounding(model: nn.Module, autocast: torch.dtype | None) -> float:
    """The unit roundoff of what a model multiplies: in a capture other kernels may compute the same.

    Libraries choose other algorithms there, and Transformers gives attention a mask in place of ``is_causal``. Under
    ``autocast`` it is that of its dtype. Float32 is rounded where TF32 is allowed, which is the default of convolutions
    and recurrent layers.
    """
    types = {p.dtype for p in model.parameters() if p.is_floating_point()} if autocast is None else {autocast}
    cudnn: Any = torch.backends.cudnn
    backends, modules = [torch.backends.cuda.matmul], [*model.modules()]
    for kinds, backend in ((CONVOLUTIONS, cudnn.conv), (nn.RNNBase, cudnn.rnn)):
        backends += [backend] * any(isinstance(one, kinds) for one in modules)
    tf32 = any(one.fp32_precision == "tf32" for one in backends)
    eps = {dtype: torch.finfo(torch.float16 if dtype == torch.float32 and tf32 else dtype).eps for dtype in types}
    return max(eps.values(), default=0.0) / 2


def judge(
    replayed: Sequence[Tensor], eager: Sequence[Tensor], again: Sequence[Tensor], what: str, rounded: float = 0.0
) -> None:
    """Compare a replay with an eager run, beside the distance of two eager runs and the `rounding` of products.

    Raises:
        CheckError: the replay is farther from eager mode than its own spread and rounding explain.
    """
    noise, error = distance(again, eager), distance(replayed, eager)
    if not error <= max(NOISE * noise, EXACT, rounded):
        raise CheckError(
            f"{what} by a CUDA graph differ from eager mode by {error:.1e} (two eager runs: {noise:.1e}), so a value "
            "was fixed at capture; look for Python code that depends on the batch or the step, or run in eager mode"
        )
