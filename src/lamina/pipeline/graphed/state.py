"""State that a step changes, so that it can be run several times from the same start and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite

import torch
from torch import Tensor

from lamina.errors import CheckError

NOISE = 4.0
"""How many times farther from eager mode than another eager run a replay may be."""

EXACT = 1e-5
"""Relative distance that is always allowed: a sum in another order."""


class State:
    """A copy of tensors and of the states of the random number generators."""

    def __init__(self, tensors: Iterable[Tensor], device: torch.device):
        self.tensors = [*tensors]
        self.values = [tensor.detach().clone() for tensor in self.tensors]
        self.device = device
        self.random = torch.get_rng_state()
        self.device_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @torch.no_grad()
    def restore(self, perturbed: bool = False) -> None:
        """Set the tensors, in place, and the generators to what they were; ``perturbed`` by one ulp."""
        for tensor, value in zip(self.tensors, self.values, strict=True):
            tensor.copy_(_perturbed(value) if perturbed else value)
        torch.set_rng_state(self.random)
        if self.device_random is not None:
            torch.cuda.set_rng_state(self.device_random, self.device)

    @torch.no_grad()
    def changes(self, perturbed: bool = False) -> list[Tensor]:
        """By how much each tensor has changed since `restore`: an update is small beside what it updates."""
        found = []
        for tensor, value in zip(self.tensors, self.values, strict=True):
            begun = _perturbed(value) if perturbed else value
            found.append(tensor - begun if tensor.is_floating_point() else tensor.clone())
        return found


def _perturbed(value: Tensor) -> Tensor:
    """Floating-point values that are one ulp larger and smaller in turn."""
    if not value.is_floating_point():
        return value
    signs = 1 - 2 * (torch.arange(value.numel(), device=value.device) % 2).view(value.shape)
    return value * (1 + signs.to(value.dtype) * torch.finfo(value.dtype).eps)


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


def judge(
    replayed: Sequence[Tensor],
    eager: Sequence[Tensor],
    again: Sequence[Tensor],
    perturbed: Callable[[], Sequence[Tensor]],
    what: str,
) -> None:
    """Compare a replay with an eager run, beside the distance of two eager runs.

    A capture may sum in another order than eager mode, as where a library gets other memory to work in. Where the
    replay is farther away than the two, it is compared with an eager run whose state is perturbed by one ulp: in TF32
    that moves a few values to their neighbours, which are thousands of times as far.

    Args:
        replayed: results of the replay.
        eager: those of eager mode.
        again: those of eager mode once more.
        perturbed: runs in eager mode from a state that is perturbed by one ulp.
        what: was compared.

    Raises:
        CheckError: the replay is farther from eager mode than its own spread explains.
    """
    noise, error = distance(again, eager), distance(replayed, eager)
    if error <= max(NOISE * noise, EXACT):
        return
    spread = distance(perturbed(), eager) if isfinite(error) else 0.0
    if not (isfinite(spread) and error <= NOISE * spread):
        raise CheckError(
            f"{what} by a CUDA graph differ from eager mode by {error:.1e} (two eager runs: {noise:.1e}, perturbed "
            f"by one ulp: {spread:.1e}), so a value was fixed at capture; look for Python code that depends on the "
            "batch or the step, or run in eager mode"
        )
