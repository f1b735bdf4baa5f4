"""Sparse or dense: a cost model with calibrated constants decides for each phase of a layer, and says why.

The model predicts from sizes and densities alone, so it needs no look at the data and never waits for the device. It
is as good as its constants, which a calibration measures; without them a layer stays dense. Where no density is known
nothing is taken to be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import NamedTuple, Protocol

from lamina.accelerate.methods.activation_sparsity.config import Impl
from lamina.accelerate.methods.activation_sparsity.tiles import WIDTHS, union_tile
from lamina.errors import UsageError
from lamina.spec import Phase


class Density(Protocol):
    """What is known of a map's zeros; the sparsity monitor's observations are of this kind."""

    @property
    def density(self) -> float:
        """Share of elements that are not zero."""

    @property
    def union_density(self) -> Mapping[int, float]:
        """For each width, share of rows of so many neighbouring columns that are not all zero."""


@dataclass(frozen=True)
class Full:
    """A map that has no zeros: what is taken of one of which nothing is known."""

    density: float = 1.0
    union_density: Mapping[int, float] = field(default_factory=lambda: dict.fromkeys(WIDTHS, 1.0))


DensitySource = Callable[[], Density | None]
"""Gives the latest density, or nothing while none is known. It is asked in every step, so it must not wait."""


class Size(NamedTuple):
    """A product ``(outputs, rows) x (rows, columns)`` whose right operand is read from ``elements`` of ``itemsize``.

    ``together`` are the columns that share a list of rows in ``union``: an image's, or by default its tile's.
    """

    outputs: int
    columns: int
    rows: int
    elements: int
    itemsize: int
    together: int = 0


@dataclass(frozen=True)
class Calibration:
    """Constants of the cost model, for one device and precision.

    Args:
        dense: operations per microsecond of the library's product.
        nonzero: operations per microsecond on non-zeros alone.
        union: operations per microsecond on united rows.
        bandwidth: bytes per microsecond of a pass over memory.
        launch_us: one kernel's start.

    Raises:
        UsageError: a constant is not positive.
    """

    dense: float
    nonzero: float
    union: float
    bandwidth: float
    launch_us: float

    def __post_init__(self) -> None:
        wrong = {f.name: getattr(self, f.name) for f in fields(self) if not 0 < getattr(self, f.name) < float("inf")}
        if wrong:
            raise UsageError(f"calibration: expected positive numbers, got {wrong}")


class Line(NamedTuple):
    """A time in microseconds that grows with a share: ``base_us + slope_us * share``."""

    base_us: float
    slope_us: float

    def at(self, share: float) -> float:
        """The time at a share."""
        return self.base_us + self.slope_us * share

    @classmethod
    def through(cls, one: tuple[float, float], other: tuple[float, float]) -> Line:
        """Through two measured ``(share, time)``; times never fall with the share, so a flat line where they do.

        Raises:
            UsageError: both are at the same share.
        """
        (low, fast), (high, slow) = sorted((one, other))
        if low == high:
            raise UsageError(f"expected times at two shares, got both at {low}")
        slope = max(slow - fast, 0.0) / (high - low)
        return cls(slow - slope * high, slope)


@dataclass(frozen=True)
class Measured:
    """What a layer's own phase took: the surest of calibrations, for one size, device, layout and precision.

    Args:
        dense_us: of the library's product.
        nonzero: over the density.
        union: over the share of rows that columns together have.
    """

    dense_us: float
    nonzero: Line | None = None
    union: Line | None = None


@dataclass(frozen=True)
class Choice:
    """How a phase is computed, why, and the predicted times in microseconds, where there are any."""

    impl: Impl
    reason: str
    times_us: Mapping[str, float] = field(default_factory=dict)


class PhaseImpls(NamedTuple):
    """How each phase is computed."""

    forward: Impl = "dense"
    backward_data: Impl = "dense"
    backward_weight: Impl = "dense"


def predict(size: Size, density: Density, calibration: Calibration | Measured) -> dict[str, float]:
    """Microseconds of each implementation.

    Dense is bound by its operations or by its traffic. ``nonzero`` passes twice over the map, writes 4 bytes for each
    non-zero and then works on non-zeros; ``union`` passes over the map and then works on united rows. A width of which
    no union density is known cannot be predicted. What was measured is read off its line.

    Raises:
        UsageError: a density is not within 0..1.
    """
    share = checked(density.density)
    united = union_share(density.union_density, size.together or union_tile(*size[:2]).columns)
    if isinstance(calibration, Measured):
        times = {"dense": calibration.dense_us}
        if calibration.nonzero:
            times["nonzero"] = calibration.nonzero.at(share)
        if calibration.union and united is not None:
            times["row_union"] = calibration.union.at(united)
        return times
    constants, (outputs, columns, rows, elements, itemsize, _) = calibration, size
    operations = 2.0 * outputs * columns * rows
    traffic = (elements + outputs * rows + outputs * columns) * itemsize / constants.bandwidth
    scan = elements * itemsize / constants.bandwidth
    times = {
        "dense": max(operations / constants.dense, traffic) + constants.launch_us,
        # The scale takes a pass, the conversion another one; weights are laid out anew.
        "nonzero": 2 * scan
        + 4 * share * elements / constants.bandwidth
        + max(share * operations / constants.nonzero, traffic)
        + 4 * constants.launch_us,
    }
    if united is not None:
        times["row_union"] = scan + max(united * operations / constants.union, traffic) + 3 * constants.launch_us
    return times


def union_share(known: Mapping[int, float], together: int) -> float | None:
    """Share of rows that are not zero throughout so many neighbouring columns; nothing where nothing tells.

    Beyond the widest that is known, the share of zero rows is taken to fall as it did last, the faster the wider: as it
    would if runs of zeros were as long as they look there. Zeros of a whole channel stay what they are.

    Raises:
        UsageError: a share is not within 0..1.
    """
    if together in known:
        return checked(known[together])
    below = [width for width in known if width < together]
    above = [width for width in known if width > together]
    if above:
        return checked(known[min(above)])
    if not below or max(below) // 2 not in known:
        return None
    width = max(below)
    empty, wider = 1 - checked(known[width // 2]), 1 - checked(known[width])
    ratio = wider / empty if empty else 1.0
    while width < together:
        ratio, width = ratio**2, 2 * width
        wider *= ratio
    return 1 - wider


def choose(
    size: Size,
    density: Density | None,
    calibration: Calibration | Measured | None,
    min_speedup: float,
    dense_us: float | None = None,
) -> Choice:
    """The implementation of a phase: dense unless another one has a predicted speedup of ``min_speedup``.

    Args:
        size: of the product.
        density: of its right operand; without one, nothing is taken to be zero.
        calibration: the model's constants, or the layer's own times.
        min_speedup: least dense time over candidate time for which the candidate is chosen.
        dense_us: the dense time as it was measured; it takes the place of the predicted one.

    Raises:
        UsageError: a density is not within 0..1, or a time is not positive.
    """
    if calibration is None:
        return Choice("dense", "dense: no calibration")
    known = density or Full()
    times = predict(size, known, calibration)
    if dense_us is not None:
        if not 0 < dense_us < float("inf"):
            raise UsageError(f"dense_us: expected a positive time, got {dense_us}")
        times["dense"] = dense_us
    best = min(times, key=lambda name: times[name])
    told = f"density {density.density:.3g}" if density else "unknown density"
    said = ", ".join(f"{name} {time:.3g} us" for name, time in times.items())
    if best != "dense" and times["dense"] < min_speedup * times[best]:
        return Choice("dense", f"dense: {said} at {told}; the speedup of {best} is below {min_speedup:g}", times)
    impls: dict[str, Impl] = {"dense": "dense", "nonzero": "nonzero", "row_union": "row_union"}
    return Choice(impls[best], f"{best}: {said} at {told}", times)


def report(choices: Mapping[str, Mapping[Phase, Choice]]) -> list[tuple[str, str, str, str]]:
    """Layer, phase, implementation and reason, a row for each choice; see `nn.choices_of`."""
    return [
        (layer, phase.value, choice.impl, choice.reason)
        for layer, phases in choices.items()
        for phase, choice in phases.items()
    ]


def checked(share: float) -> float:
    """A share, if it is one.

    Raises:
        UsageError: it is not within 0..1.
    """
    if not (isfinite(share) and 0 <= share <= 1):
        raise UsageError(f"density: expected a share within 0..1, got {share}")
    return share
