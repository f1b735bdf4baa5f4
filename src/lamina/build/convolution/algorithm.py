"""Convolution algorithms by name, and the algorithms of the three phases of a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

from torch import Tensor

from lamina.build.convolution import cudnn, direct, fft, gemm, winograd
from lamina.build.convolution.geometry import Geometry
from lamina.errors import UnsupportedError, UsageError, nearest
from lamina.spec.cost import Phase

Forward = Callable[[Tensor, Tensor, Geometry], Tensor]
Backward = Callable[[Tensor, Tensor, Geometry, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Algorithm:
    """Three pure functions of tensors; ``refusal`` gives the reason why a shape is not supported, or None.

    ``forward(x, w, geometry)``, ``backward_data(gy, w, geometry, x_shape)``,
    ``backward_weight(gy, x, geometry, w_shape)``.
    """

    forward: Forward
    backward_data: Backward
    backward_weight: Backward
    refusal: Callable[[Geometry, Sequence[int]], str | None]


def _winograd(tile: int | None) -> Algorithm:
    return Algorithm(
        partial(winograd.forward, tile=tile),
        partial(winograd.backward_data, tile=tile),
        partial(winograd.backward_weight, tile=tile),
        winograd.refusal,
    )


def _cudnn(note: str) -> Algorithm:
    return Algorithm(
        partial(cudnn.forward, note=note),
        partial(cudnn.backward_data, note=note),
        partial(cudnn.backward_weight, note=note),
        cudnn.refusal,
    )


ALGORITHMS: dict[str, Algorithm] = {
    "direct": Algorithm(direct.forward, direct.backward_data, direct.backward_weight, direct.refusal),
    "gemm": Algorithm(gemm.forward, gemm.backward_data, gemm.backward_weight, gemm.refusal),
    "fft": Algorithm(fft.forward, fft.backward_data, fft.backward_weight, fft.refusal),
    "winograd": _winograd(None),
    "winograd2": _winograd(2),
    "winograd4": _winograd(4),
    **{f"cudnn:{note}": _cudnn(note) for note in cudnn.NOTES},
}
"""``winograd2`` is F(2,3), ``winograd4`` F(4,3); ``winograd`` uses F(4,3) for output widths of 8 or more."""


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name; UsageError with the closest match if there is none."""
    if name not in ALGORITHMS:
        raise UsageError(f"convolution algorithm {name!r}: {nearest(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def phase(name: str, phase: str) -> Forward | Backward:
    """The function of one phase of one algorithm, for tensors that do not require gradients."""
    chosen = algorithm(name)
    if phase not in set(Phase):
        raise UsageError(f"phase {phase!r}: {nearest(phase, Phase)}")
    function: Forward | Backward = getattr(chosen, str(phase))
    return function


@dataclass(frozen=True)
class PhaseAlgorithms:
    """The name of the algorithm for each phase of one layer."""

    forward: str = "direct"
    backward_data: str = "direct"
    backward_weight: str = "direct"

    def check(self, geometry: Geometry, w_shape: Sequence[int]) -> None:
        """UsageError if a name is unknown, UnsupportedError with the reason if a shape is not supported."""
        for field in fields(self):
            name = getattr(self, field.name)
            reason = algorithm(name).refusal(geometry, w_shape)
            if reason:
                raise UnsupportedError(f"{field.name} by {name!r}: {reason}")
