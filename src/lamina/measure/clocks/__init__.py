"""The clocks. Each measures the time of one call by a different method.

- ``cupti``: sum of kernel durations from CUPTI activity records. For small kernels and the kernels of a layer.
- ``events``: time between two CUDA events, gaps included. For whole steps and large kernels.
- ``graph``: many calls unrolled in a CUDA graph. For small kernels without launch gaps.
- ``wall``: wall time of a loop, launch overhead included. For the time that a user sees.
- ``cpu``: wall time on the calling thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, TypeVar

import torch

from lamina.errors import UsageError, nearest
from lamina.measure.clocks.cpu import CpuClock
from lamina.measure.clocks.cupti import CuptiClock
from lamina.measure.clocks.events import EventsClock
from lamina.measure.clocks.graph import GraphClock
from lamina.measure.clocks.wall import WallClock
from lamina.measure.device import resolve
from lamina.measure.repeat import DEFAULT, Repeat
from lamina.record.timing import Timing

_log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)


class Clock(Protocol):
    """Times one callable, `fn()`, with the L2 cache 'warm' or 'cold' before each call."""

    @property
    def name(self) -> str: ...

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing: ...


_CUDA: dict[str, Callable[[torch.device], Clock]] = {
    "cupti": CuptiClock,
    "events": EventsClock,
    "graph": GraphClock,
    "wall": WallClock,
}
_CPU: dict[str, Callable[[torch.device], Clock]] = {"cpu": lambda _: CpuClock()}


def time_each(
    clock: Clock, fns: Mapping[K, Callable[[], object]], *, l2: str = "warm", repeat: Repeat = DEFAULT
) -> dict[K, Timing | Exception]:
    """The Timing of each callable, or its exception: out of memory, or not supported by this clock.

    A profiler session is expensive, so the CUPTI clock times all callables in one, and separately only if that fails.
    """
    if isinstance(clock, CuptiClock) and fns:
        try:
            return dict(clock.time_many(fns, l2=l2, repeat=repeat))
        except RuntimeError as error:
            _log.info("timing all callables in one session failed, timing them separately: %s", error)
    return {key: _attempt(clock, fn, l2, repeat) for key, fn in fns.items()}


def _attempt(clock: Clock, fn: Callable[[], object], l2: str, repeat: Repeat) -> Timing | Exception:
    try:
        return clock.time(fn, l2=l2, repeat=repeat)
    except Exception as error:  # whatever the code of a user's module raises
        return error


def clocks_for(device: torch.device | str) -> tuple[str, ...]:
    """The names of the clocks that a device supports, the preferred one first."""
    return tuple(_clocks(resolve(device)))


def clock(name: str, device: torch.device | str) -> Clock:
    """The clock of that name for a device. Errors: UsageError, MissingError without the device."""
    device = resolve(device)
    supported = _clocks(device)
    if name in supported:
        return supported[name](device)
    if name in _CUDA | _CPU:
        raise UsageError(f"the {name!r} clock does not support {device.type} devices: use {', '.join(supported)}")
    raise UsageError(f"unknown clock {name!r}: {nearest(name, supported)}")


def _clocks(device: torch.device) -> dict[str, Callable[[torch.device], Clock]]:
    return _CUDA if device.type == "cuda" else _CPU
