"""A measured (or failed) phase of a layer: the row everything else is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from lamina.record.timing import Timing

Outcome = Literal["ok", "failed", "skipped"]


class Key(NamedTuple):
    """What makes a row unique within a run, apart from the clock: the unit of resuming, and of joining kernels."""

    layer: str
    phase: str
    impl: str
    precision: str
    layout: str
    batch: int


@dataclass(frozen=True)
class LayerRun:
    """One phase of one layer in one configuration.

    ``phase`` is ``forward``, ``backward_data``, ``backward_weight``; or ``step`` for a whole network at once,
    with ``layer`` the network's name. ``outcome`` other than ``ok`` has no timing and says why in ``reason``.
    ``peak_bytes`` is the most that was allocated while it ran, ``live_bytes`` what was allocated when it ended.
    ``rel_error`` is the relative L2 distance to the float64 result. ``flops`` is ``None`` where no formula exists; that
    of a whole network is the sum over its layers but for ``uncounted`` ones, and so a lower bound if there are any.

    ``impl`` is the requested implementation, ``executed_impl`` the one that ran, ``selection_reason`` why. A layer
    that keeps its dense implementation has ``impl="sparse"`` and ``executed_impl="dense"``. A row that says nothing
    about it ran what was requested; a row that is not ``ok`` ran nothing, and its ``executed_impl`` is empty.

    ``energy_j`` is the energy of one execution in joules, by the device's energy counter over many executions in a row,
    idle power included.

    ``note`` is what disturbed the timing, such as other processes, or why the result is ``unchecked``; else empty.
    """

    layer: str
    kind: str
    place: int
    phase: str
    impl: str
    precision: str
    layout: str
    batch: int
    device: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    parameters: int
    flops: int | None
    bytes: int | None
    outcome: Outcome
    reason: str = ""
    timing: Timing | None = None
    rel_error: float | None = None
    peak_bytes: int | None = None
    live_bytes: int | None = None
    sm_mhz: int | None = None
    power_w: float | None = None
    executed_impl: str = ""
    selection_reason: str = ""
    note: str = ""
    uncounted: int = 0
    energy_j: float | None = None

    def __post_init__(self) -> None:
        if not self.executed_impl and self.outcome == "ok":
            object.__setattr__(self, "executed_impl", self.impl)

    @property
    def disturbed(self) -> bool:
        """Whether the note is about the timing."""
        return bool(self.disturbance)

    @property
    def disturbance(self) -> str:
        """What of the note is about the timing."""
        return "; ".join(part for part in self.note.split("; ") if part and not part.startswith("unchecked: "))

    @property
    def fell_back(self) -> bool:
        """Whether a dense implementation ran instead of the requested one: its time is no result of ``impl``."""
        ran = self.executed_impl.partition(" (")[0]  # a whole step adds how many layers it is about
        return ran.partition(":")[0] == "dense" and ran != self.impl

    @property
    def key(self) -> Key:
        """What makes this row unique within a run, apart from the clock."""
        return Key(self.layer, self.phase, self.impl, self.precision, self.layout, self.batch)

    @property
    def mean_w(self) -> float | None:
        """Mean power while it runs, in watts: energy over time."""
        time_us = self.timing.median_us if self.timing else 0.0
        return self.energy_j / time_us * 1e6 if self.energy_j is not None and time_us else None

    @property
    def gflops(self) -> float | None:
        """Achieved rate in GFLOP/s; a lower bound if layers are ``uncounted``."""
        return (
            self.flops / self.timing.median_us / 1e3 if self.timing and self.flops and self.timing.median_us else None
        )

    @property
    def gbs(self) -> float | None:
        """Compulsory bytes over time, in GB/s."""
        return (
            self.bytes / self.timing.median_us / 1e3 if self.timing and self.bytes and self.timing.median_us else None
        )
