"""The kernel launches of a run and their counters, grouped by the row that launched them."""

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
    """The kind of a kernel, by its name.

    ``layout`` and ``copy`` only move data; ``matrix`` is a matrix product or a convolution.
    """
    return "copy" if launch.grid is None else _kind_by_name(launch.name)


@cache  # a run has few names and many launches
def _kind_by_name(name: str) -> KernelKind:
    if _COPY.search(name):
        return "copy"
    # Nested template arguments name every part of a matrix kernel, transpositions included.
    head = "<".join(name.split("<", 2)[:2])
    found = next((it for it, pattern in _KINDS if re.search(pattern, head, re.IGNORECASE)), None)
    return found or ("elementwise" if "elementwise" in head else "other")


@dataclass(frozen=True)
class Launch:
    """One kernel launch with its hardware counters; counters that the GPU does not support are absent."""

    kernel: KernelRun
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """Duration in microseconds."""
        return self.kernel.duration_us

    @cached_property
    def kind(self) -> KernelKind:
        return kind(self.kernel)


class Launches(Mapping[Key, tuple[Launch, ...]]):
    """The launches of each row, in launch order; an empty tuple for a row without kernels."""

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
    """Sum of the durations, in microseconds."""
    return sum(launch.kernel.duration_us for launch in launches)


def mean(launches: Sequence[Launch], metric: str) -> float | None:
    """Mean of a metric, weighted by duration; ``None`` unless it covers ``MIN_COVERAGE`` of the launches' time."""
    time = counted = weighted = 0.0
    for launch in launches:
        us, value = launch.kernel.duration_us, launch.counters.get(metric)
        time += us
        if value is not None:
            counted += us
            weighted += value * us
    return weighted / counted if counted > 0 and counted >= MIN_COVERAGE * time else None


def total(launches: Sequence[Launch], metric: str) -> float | None:
    """Sum of a counter over launches; ``None`` unless it covers ``MIN_COVERAGE`` of their time."""
    if mean(launches, metric) is None:
        return None
    return sum(launch.counters.get(metric, 0.0) for launch in launches)


MIN_COVERAGE = 0.9
"""Fraction of the kernel time that must have a counter: copies and fills never have any."""
