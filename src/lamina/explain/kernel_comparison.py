"""Comparison of the kernels that two runs launch for the same phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lamina.explain.comparison import compare
from lamina.explain.launches import Launch, Launches
from lamina.record import KernelRun, LayerRun

Change = Literal["same", "changed", "added", "removed"]


@dataclass(frozen=True)
class KernelComparison:
    """The kernels of one phase in run ``a`` and in run ``b``, each in launch order.

    ``change`` is ``same`` where both launch the same kernels in the same order, ``added`` where only ``b`` has the
    phase (or any kernel in it), ``removed`` where only ``a`` has. Times are kernel times in microseconds.
    """

    layer: str
    phase: str
    change: Change
    a: tuple[str, ...]
    b: tuple[str, ...]
    a_us: float
    b_us: float

    @property
    def removed(self) -> tuple[str, ...]:
        """Kernels that ``b`` launches less often than ``a``: one entry per missing launch, in ``a``'s order."""
        return _surplus(self.a, self.b)

    @property
    def added(self) -> tuple[str, ...]:
        """Kernels that ``b`` launches more often than ``a``: one entry per extra launch, in ``b``'s order."""
        return _surplus(self.b, self.a)

    @property
    def reordered(self) -> bool:
        """Whether both launch the same kernels in a different order."""
        return self.a != self.b and Counter(self.a) == Counter(self.b)


def compare_kernels(
    a_rows: Sequence[LayerRun],
    a_kernels: Iterable[KernelRun],
    b_rows: Sequence[LayerRun],
    b_kernels: Iterable[KernelRun],
) -> tuple[KernelComparison, ...]:
    """Pair the rows as ``compare`` does, and compare their kernels by name and order.

    Phases without kernels in both runs are omitted. Kernels are matched by name: two profilers that spell a name
    differently give two kernels.

    Raises:
        UsageError: a run has the same row twice.
    """
    ours, theirs = Launches(a_kernels), Launches(b_kernels)
    made = []
    for pair in compare(a_rows, b_rows):
        a: tuple[Launch, ...] = ours[pair.a.key] if pair.a else ()
        b: tuple[Launch, ...] = theirs[pair.b.key] if pair.b else ()
        if a or b:
            made.append(_compared(pair.layer, pair.phase, a, b))
    return tuple(made)


def _compared(layer: str, phase: str, a: Sequence[Launch], b: Sequence[Launch]) -> KernelComparison:
    before, after = (tuple(one.kernel.name for one in side) for side in (a, b))
    change: Change = "added" if not a else "removed" if not b else "same" if before == after else "changed"
    return KernelComparison(layer, phase, change, before, after, sum(one.us for one in a), sum(one.us for one in b))


def _surplus(of: Sequence[str], over: Sequence[str]) -> tuple[str, ...]:
    left = Counter(of) - Counter(over)
    # The first launches of each name are the matched ones, the last ones the surplus.
    picked = []
    for name in reversed(of):
        if left[name]:
            left[name] -= 1
            picked.append(name)
    return tuple(reversed(picked))
