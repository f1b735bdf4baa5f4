"""Convolution algorithms by name, and the algorithms of the three phases of a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from lamina.build.convolution import cudnn, direct, fft, gemm, space_to_depth, winograd
from lamina.build.convolution.geometry import Geometry
from lamina.errors import UnsupportedError, UsageError, nearest
from lamina.spec.cost import Phase

Forward = Callable[[Tensor, Tensor, Geometry], Tensor]
Backward = Callable[[Tensor, Tensor, Geometry, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Algorithm:
    """Three pure functions of tensors; ``refusal`` gives the reason why a shape is not supported, or None.

    ``forward(x, w, geometry)``, ``backward_data(gy, w, geometry, x_shape)``,
    ``backward_weight(gy, x, geometry, w_shape)``. ``composed``: the derivative of ``forward`` by autograd computes the
    same gradients, so that compilers need no function of its own.
    """

    forward: Forward
    backward_data: Backward
    backward_weight: Backward
    refusal: Callable[[Geometry, Sequence[int]], str | None]
    composed: bool = False


def _winograd(tile: int | None) -> Algorithm:
    return Algorithm(
        partial(winograd.forward, tile=tile),
        partial(winograd.backward_data, tile=tile),
        partial(winograd.backward_weight, tile=tile),
        winograd.refusal,
    )


def _cudnn(note: str, limit: int | None = None) -> Algorithm:
    return Algorithm(
        partial(cudnn.forward, note=note, limit=limit),
        partial(cudnn.backward_data, note=note, limit=limit),
        partial(cudnn.backward_weight, note=note, limit=limit),
        cudnn.refusal,
    )


def _limited_direct(limit: int) -> Algorithm:
    """cuDNN's first engine within a workspace limit, where its engines can be selected; elsewhere ``direct``."""
    engines = _cudnn(cudnn.ANY, limit)

    def pick(name: str) -> Callable[..., Tensor]:
        limited, unlimited = getattr(engines, name), getattr(direct, name)

        def run(a: Tensor, b: Tensor, geometry: Geometry, *shape: Sequence[int]) -> Tensor:
            selectable = a.is_cuda and not geometry.transposed and cudnn.is_available()
            y: Tensor = (limited if selectable else unlimited)(a, b, geometry, *shape)
            return y

        return run

    return Algorithm(pick("forward"), pick("backward_data"), pick("backward_weight"), direct.refusal)


ALGORITHMS: dict[str, Algorithm] = {
    "direct": Algorithm(direct.forward, direct.backward_data, direct.backward_weight, direct.refusal),
    "gemm": Algorithm(gemm.forward, gemm.backward_data, gemm.backward_weight, gemm.refusal),
    "fft": Algorithm(fft.forward, fft.backward_data, fft.backward_weight, fft.refusal),
    "space_to_depth": Algorithm(
        space_to_depth.forward,
        space_to_depth.backward_data,
        space_to_depth.backward_weight,
        space_to_depth.refusal,
        composed=True,
    ),
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


_PHASES = tuple(Phase)


@dataclass(frozen=True)
class PhaseAlgorithms:
    """The name of the algorithm for each phase of one layer.

    ``workspace_limits`` are in bytes, for the phases in the same order; they apply to ``direct`` and ``cudnn:*``.
    """

    forward: str = "direct"
    backward_data: str = "direct"
    backward_weight: str = "direct"
    workspace_limits: tuple[int | None, int | None, int | None] = (None, None, None)

    def of(self, phase: Phase) -> Algorithm:
        """The algorithm of one phase; UsageError with the closest match if its name is unknown."""
        name: str = getattr(self, phase)
        limit = self.workspace_limits[_PHASES.index(phase)]
        if limit is None or not (name == "direct" or name.startswith("cudnn:")):
            return algorithm(name)
        algorithm(name)
        return _limited_direct(limit) if name == "direct" else _cudnn(name.removeprefix("cudnn:"), limit)

    @property
    def composed(self) -> Algorithm | None:
        """The algorithm of all phases, if autograd derives its gradients."""
        one = self.of(Phase.FORWARD)
        return one if one.composed and self.backward_data == self.backward_weight == self.forward else None

    def check(self, geometry: Geometry, w_shape: Sequence[int]) -> None:
        """UsageError if a name is unknown, UnsupportedError with the reason if a shape is not supported."""
        for phase in _PHASES:  # the compiler of PyTorch 2.11 cannot iterate over the enumeration itself
            reason = self.of(phase).refusal(geometry, w_shape)
            if reason:
                raise UnsupportedError(f"{phase} by {getattr(self, phase)!r}: {reason}")
