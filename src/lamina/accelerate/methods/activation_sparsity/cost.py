"""The cost model of sparse phases: it predicts the time of each implementation and selects one, with the reason.

It predicts from sizes and densities, so it never reads activations and never synchronizes with the device. Its
constants come from a calibration; without one a layer stays dense. Where no density is known, activations count as
dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import NamedTuple, Protocol, Self

import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.methods.activation_sparsity.config import Impl
from lamina.accelerate.methods.activation_sparsity.tiles import WIDTHS, row_union_tile
from lamina.errors import UsageError
from lamina.spec import Phase


class Density(Protocol):
    """The density of an activation map; the sparsity monitor's observations have this form."""

    @property
    def density(self) -> float:
        """Fraction of elements that are not zero."""

    @property
    def union_density(self) -> Mapping[int, float]:
        """By width: fraction of rows that hold a non-zero in a group of so many neighbouring columns."""


@dataclass(frozen=True)
class Observed:
    """The density of a map; by default that of a map without zeros, which stands for an unknown one."""

    density: float = 1.0
    union_density: Mapping[int, float] = field(default_factory=lambda: dict.fromkeys(WIDTHS, 1.0))

    @classmethod
    def of(cls, x: Tensor, channels: int) -> Self:
        """Of a map whose axis ``channels`` holds the rows; the other axes, in order, are the columns."""
        rows = (x != 0).movedim(channels, 0).flatten(1)
        if not rows.numel():
            return cls()
        unions = {}
        for width in WIDTHS:
            groups = F.pad(rows, (0, -rows.shape[1] % width)).view(len(rows), -1, width)
            unions[width] = float(groups.any(-1).float().mean())
        return cls(float(rows.float().mean()), unions)


DensitySource = Callable[[], Density | None]
"""Returns the latest density, ``None`` while it is unknown. Layers call it in every pass: it must not synchronize."""


class Size(NamedTuple):
    """A product ``(outputs, rows) x (rows, columns)`` whose right operand is read from ``elements`` of ``itemsize``.

    ``columns_per_list`` columns share a list of rows in ``row_union``: an image's, or by default a tile's.
    """

    outputs: int
    columns: int
    rows: int
    elements: int
    itemsize: int
    columns_per_list: int = 0


@dataclass(frozen=True)
class Calibration:
    """Constants of the cost model, for one device and precision.

    Args:
        dense: FLOPs per microsecond of the library's product.
        nonzero: FLOPs per microsecond of ``nonzero``, over non-zeros.
        union: FLOPs per microsecond of ``row_union``, over rows of the union.
        bandwidth: bytes per microsecond of a memory-bound pass.
        launch_us: launch overhead of one kernel.

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
    """A time in microseconds that grows with a density: ``base_us + slope_us * density``."""

    base_us: float
    slope_us: float

    def at(self, density: float) -> float:
        """The time at a density."""
        return self.base_us + self.slope_us * density

    @classmethod
    def through(cls, one: tuple[float, float], other: tuple[float, float]) -> Line:
        """Through two measured ``(density, time)``; a flat line where the time falls with the density.

        Raises:
            UsageError: both have the same density.
        """
        (low, fast), (high, slow) = sorted((one, other))
        if low == high:
            raise UsageError(f"expected times at two densities, got both at {low}")
        slope = max(slow - fast, 0.0) / (high - low)
        return cls(slow - slope * high, slope)


@dataclass(frozen=True)
class Measured:
    """Measured times of one phase of a layer, for its shapes, device, layout and precision.

    Args:
        dense_us: time of the library's product.
        nonzero: time of ``nonzero`` over the density.
        union: time of ``row_union`` over the union density of the columns that share a list.
    """

    dense_us: float
    nonzero: Line | None = None
    union: Line | None = None


@dataclass(frozen=True)
class PhaseSelection:
    """The implementation of a phase, the reason, and predicted times in microseconds where there are any."""

    impl: Impl
    reason: str
    times_us: Mapping[str, float] = field(default_factory=dict)


class PhaseImpls(NamedTuple):
    """The implementation of each phase."""

    forward: Impl = "dense"
    backward_data: Impl = "dense"
    backward_weight: Impl = "dense"


def predict(size: Size, density: Density, calibration: Calibration | Measured) -> dict[str, float]:
    """Microseconds of each implementation.

    Dense is compute-bound or memory-bound. ``nonzero`` reads the map twice, writes 4 bytes for each non-zero and then
    multiplies non-zeros. ``row_union`` reads the map once and then multiplies the rows of the union; where the union
    density is unknown it is not predicted. Measured times are interpolated.

    Raises:
        UsageError: a density is not within 0..1.
    """
    fraction = checked(density.density)
    union = union_density(density.union_density, size.columns_per_list or row_union_tile(*size[:2]).block_n)
    if isinstance(calibration, Measured):
        times = {"dense": calibration.dense_us}
        if calibration.nonzero:
            times["nonzero"] = calibration.nonzero.at(fraction)
        if calibration.union and union is not None:
            times["row_union"] = calibration.union.at(union)
        return times
    constants, (outputs, columns, rows, elements, itemsize, _) = calibration, size
    operations = 2.0 * outputs * columns * rows
    traffic = (elements + outputs * rows + outputs * columns) * itemsize / constants.bandwidth
    scan = elements * itemsize / constants.bandwidth
    times = {
        "dense": max(operations / constants.dense, traffic) + constants.launch_us,
        # One pass for the scale, one for the conversion; weights are rearranged.
        "nonzero": 2 * scan
        + 4 * fraction * elements / constants.bandwidth
        + max(fraction * operations / constants.nonzero, traffic)
        + 4 * constants.launch_us,
    }
    if union is not None:
        times["row_union"] = scan + max(union * operations / constants.union, traffic) + 3 * constants.launch_us
    return times


def union_density(known: Mapping[int, float], columns: int) -> float | None:
    """The union density over a group of columns; ``None`` where it does not follow from the known widths.

    Beyond the widest known group, the fraction of zero rows is extrapolated: each doubling of the width squares the
    factor of the last doubling.

    Raises:
        UsageError: a density is not within 0..1.
    """
    if columns in known:
        return checked(known[columns])
    below = [width for width in known if width < columns]
    above = [width for width in known if width > columns]
    if above:
        return checked(known[min(above)])
    if not below or max(below) // 2 not in known:
        return None
    width = max(below)
    empty, wider = 1 - checked(known[width // 2]), 1 - checked(known[width])
    ratio = wider / empty if empty else 1.0
    while width < columns:
        ratio, width = ratio**2, 2 * width
        wider *= ratio
    return 1 - wider


def choose(
    size: Size,
    density: Density | None,
    calibration: Calibration | Measured | None,
    min_speedup: float,
    dense_us: float | None = None,
) -> PhaseSelection:
    """The implementation of a phase: dense unless another one has a predicted speedup of ``min_speedup``.

    Args:
        size: of the product.
        density: of its right operand; ``None`` counts as dense.
        calibration: constants of the model, or measured times of the layer.
        min_speedup: least dense time over candidate time for which the candidate is chosen.
        dense_us: a measured dense time, which replaces the predicted one.

    Raises:
        UsageError: a density is not within 0..1, or a time is not positive.
    """
    if calibration is None:
        return PhaseSelection("dense", "dense: no calibration")
    known = density or Observed()
    times = predict(size, known, calibration)
    if dense_us is not None:
        if not 0 < dense_us < float("inf"):
            raise UsageError(f"dense_us: expected a positive time, got {dense_us}")
        times["dense"] = dense_us
    best = min(times, key=lambda name: times[name])
    given = f"density {density.density:.3g}" if density else "unknown density"
    times_text = ", ".join(f"{name} {time:.3g} us" for name, time in times.items())
    if best != "dense" and times["dense"] < min_speedup * times[best]:
        reason = f"dense: {times_text} at {given}; the speedup of {best} is below {min_speedup:g}"
        return PhaseSelection("dense", reason, times)
    impls: dict[str, Impl] = {"dense": "dense", "nonzero": "nonzero", "row_union": "row_union"}
    return PhaseSelection(impls[best], f"{best}: {times_text} at {given}", times)


def report(choices: Mapping[str, Mapping[Phase, PhaseSelection]]) -> list[tuple[str, str, str, str]]:
    """Rows of layer, phase, implementation and reason; see `nn.choices_of`."""
    return [
        (layer, phase.value, choice.impl, choice.reason)
        for layer, phases in choices.items()
        for phase, choice in phases.items()
    ]


def checked(density: float) -> float:
    """The density itself.

    Raises:
        UsageError: it is not within 0..1.
    """
    if not (isfinite(density) and 0 <= density <= 1):
        raise UsageError(f"density: expected a number within 0..1, got {density}")
    return density
