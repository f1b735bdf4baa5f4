"""The kernels of a run and their counters, by the row that launched them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal

from lamina.record import Counter, KernelRun, Key

KernelKind = Literal["copy", "layout", "reduction", "matrix", "elementwise", "other"]

_KINDS: tuple[tuple[KernelKind, str], ...] = (
    ("other", r"workspace"),
    ("layout", r"nchwToNhwc|nhwcToNchw|transpose(?!Params)|tensorTransform|convert_?layout|permute"),
    ("reduction", r"reduc"),
    ("matrix", r"gemm|xmma|wgrad|dgrad|fprop|cutlass|winograd|nvjet|flash|fmha|attention|conv\w*2d|implicit|_mma_"),
)
_COPY = re.compile(r"direct_copy_kernel|\bmemcpy\b|\bmemset\b", re.IGNORECASE)


def kind(launch: KernelRun) -> KernelKind:
    """What a kernel does, as its name tells.

    ``layout`` and ``copy`` compute nothing; ``matrix`` is a matrix product or a convolution.
    """
    return "copy" if launch.grid is None else _kind_by_name(launch.name)


@cache  # a run has few names and many launches
def _kind_by_name(name: str) -> KernelKind:
    if _COPY.search(name):
        return "copy"
    # Deeper template arguments name everything that a matrix kernel is made of, transpositions too.
    head = "<".join(name.split("<", 2)[:2])
    found = next((it for it, pattern in _KINDS if re.search(pattern, head, re.IGNORECASE)), None)
    return found or ("elementwise" if "elementwise" in head else "other")


@dataclass(frozen=True)
class Launch:
    """One kernel launch with what was counted in it; a counter the chip cannot tell is not in ``counters``."""

    kernel: KernelRun
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """Its duration."""
        return self.kernel.duration_us

    @cached_property
    def kind(self) -> KernelKind:
        return kind(self.kernel)


class Launches(Mapping[Key, tuple[Launch, ...]]):
    """The launches of each row, in their order; none for a row without kernels."""

    def __init__(self, kernels: Iterable[KernelRun], counters: Iterable[Counter] = ()):
        counted: dict[tuple[Key, int], dict[str, float]] = {}
        for one in counters:
            if one.value is not None:
                counted.setdefault((one.key, one.invocation), {})[one.metric] = one.value
        rows: dict[Key, list[Launch]] = {}
        for kernel in sorted(kernels, key=lambda kernel: kernel.invocation):
            launch = Launch(kernel, counted.get((kernel.key, kernel.invocation), {}))
            rows.setdefault(kernel.key, []).append(launch)
        self._rows = {key: tuple(members) for key, members in rows.items()}

    def __getitem__(self, key: Key) -> tuple[Launch, ...]:
        return self._rows.get(key, ())

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def total_us(launches: Iterable[Launch]) -> float:
    """Duration of several kernels together."""
    return sum(launch.kernel.duration_us for launch in launches)


def mean(launches: Sequence[Launch], metric: str) -> float | None:
    """A metric over several kernels, weighted by their time: ``None`` unless most of that time was counted."""
    time = counted = weighted = 0.0
    for launch in launches:
        us, value = launch.kernel.duration_us, launch.counters.get(metric)
        time += us
        if value is not None:
            counted += us
            weighted += value * us
    return weighted / counted if counted > 0 and counted >= MOST_COUNTED * time else None


def total(launches: Sequence[Launch], metric: str) -> float | None:
    """A count over several kernels: ``None`` unless most of their time was counted."""
    if mean(launches, metric) is None:
        return None
    return sum(launch.counters.get(metric, 0.0) for launch in launches)


MOST_COUNTED = 0.9
"""Part of the kernels' time that must have a counter before it speaks for all: copies and fills never have any."""
