"""State that a step changes, so that it can be run several times from the same start and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

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


def rounding(model: nn.Module, autocast: torch.dtype | None = None) -> float:
    """The unit roundoff of what a model multiplies: in a capture other kernels may compute the same.

    Under ``autocast`` it is that of its dtype. Float32 is rounded where TF32 is allowed, which is the default of
    convolutions and recurrent layers.
    """
    types = {p.dtype for p in model.parameters() if p.is_floating_point()} if autocast is None else {autocast}
    cudnn: Any = torch.backends.cudnn
    backends, modules = [torch.backends.cuda.matmul], [*model.modules()]
    for kinds, backend in ((CONVOLUTIONS, cudnn.conv), (nn.RNNBase, cudnn.rnn)):
        backends += [backend] * any(isinstance(one, kinds) for one in modules)
    tf32 = any(one.fp32_precision == "tf32" for one in backends)
    eps = {dtype: torch.finfo(torch.float16 if dtype == torch.float32 and tf32 else dtype).eps for dtype in types}
    return max(eps.values(), default=0.0) / 2


Run = Literal["eager", "told", "graph"]


def compare(run: Callable[[Run], list[Tensor]], what: str, model: nn.Module, autocast: torch.dtype | None) -> None:
    """Compare a graph with eager mode, beside the distance of two eager runs and the `rounding` of products.

    Code that asks may choose other kernels in a capture: that of Transformers gives attention a mask in place of
    ``is_causal``. Then the graph is compared with eager code that is told that it is captured, beside the distance of
    two such runs: the backward pass of cuDNN's attention with a mask is nondeterministic. That code may differ from
    eager mode by the rounding under ``autocast``.

    Args:
        run: the results from one and the same state: in eager mode, in eager mode as if captured, or of the graph, the
            last of which is the last call.

    Raises:
        CheckError: the graph is farther from eager mode.
    """
    eager, again, replayed = run("eager"), run("eager"), run("graph")
    noise = distance(again, eager)
    allowed = max(NOISE * noise, EXACT, rounding(model))
    error = distance(replayed, eager)
    if error <= allowed:
        return
    told = run("told")
    chosen = distance(told, eager)  # 0 where code does not ask
    if chosen <= max(allowed, rounding(model, autocast)):
        noise = max(noise, distance(run("told"), told))  # those kernels may be nondeterministic
        allowed = max(allowed, NOISE * noise)
        error = distance(run("graph"), told)
    if not error <= allowed:
        raise CheckError(
            f"{what} by a CUDA graph differ from eager mode by {error:.1e} (two eager runs: {noise:.1e}), so a value "
            "was fixed at capture; look for Python code that depends on the batch or the step, or run in eager mode"
        )
