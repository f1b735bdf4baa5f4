"""A kernel launch tied to the layer, phase and configuration that launched it, and a counter read for it."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.record.layer_run import Key


@dataclass(frozen=True)
class KernelRun:
    """One launch of a GPU kernel by the row of ``key``. ``invocation`` counts that row's launches from 0.

    ``grid`` and ``block`` are ``None`` for copies and fills, which are no kernels but take device time.
    """

    key: Key
    invocation: int
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None  # per thread
    shared_bytes: int | None  # per block
    duration_us: float


@dataclass(frozen=True)
class Counter:
    """A hardware counter of one kernel launch; ``value`` is ``None`` where the chip cannot tell."""

    key: Key
    invocation: int
    metric: str
    value: float | None
    unit: str
