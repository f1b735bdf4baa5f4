"""Joins the kernels of a timed run with the counters of the same kernels in a second run.

Libraries may choose other kernels in another process. The two runs of each row are therefore compared launch by
launch; if anything differs, the row gets a reason instead of counters. Kernels that a library launches on streams of
its own run in either order, and under ncu one by one: equal launches are joined in order, others in any.
"""

from __future__ import annotations

import re
from collections import Counter as Counted
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from lamina.measure.counters.parse import Profiled, Triple
from lamina.record.kernel_run import Counter, KernelRun
from lamina.record.layer_run import Key

_UNNAMED = ("(anonymous namespace)::", "<unnamed>::", "{anonymous}::")
_SHOWN = 8  # kernels of each side in a reason


@dataclass(frozen=True)
class Mismatch:
    """A row whose kernels differ between the two runs; ``key`` is ``None`` for a range without a row."""

    range: str
    key: Key | None
    reason: str


def join(
    kernels: Iterable[KernelRun], profiled: Iterable[Profiled], key_of_range: Mapping[str, Key]
) -> tuple[tuple[Counter, ...], tuple[Mismatch, ...]]:
    """Counters of the rows whose kernels agree in count, name, grid and block; reasons for the others.

    Memcpys and memsets of the timed run are ignored, since ncu does not profile them. So are kernels outside of all
    ranges.
    """
    timed: dict[Key, list[KernelRun]] = {}
    for kernel in kernels:
        timed.setdefault(kernel.key, []).append(kernel)
    counted: dict[str, list[Profiled]] = {name: [] for name in key_of_range}
    for one in profiled:
        if one.range is not None:
            counted.setdefault(one.range, []).append(one)

    counters: list[Counter] = []
    mismatches: list[Mismatch] = []
    for name, there in counted.items():
        key = key_of_range.get(name)
        if key is None:
            mismatches.append(Mismatch(name, None, "the timed run has no such range"))
            continue
        launches = sorted(timed.get(key, ()), key=lambda kernel: kernel.invocation)
        here = [kernel for kernel in launches if kernel.grid is not None]
        if reason := difference(here, there):
            mismatches.append(Mismatch(name, key, reason))
        else:
            for kernel, one in zip(here, _in_order_of(here, there), strict=True):
                counters += [
                    Counter(key, kernel.invocation, m, value, unit) for m, (value, unit) in one.metrics.items()
                ]
    return tuple(counters), tuple(mismatches)


def difference(timed: Sequence[KernelRun], counted: Sequence[Profiled]) -> str:
    """The difference between the kernels of two runs, as text; empty if there is none."""
    here = [_identity(kernel.name, kernel.grid, kernel.block) for kernel in timed]
    there = [_identity(one.name, one.grid, one.block) for one in counted]
    if Counted(here) == Counted(there):
        return ""
    at = next(at for at, (one, other) in enumerate(zip_longest(here, there)) if one != other)
    return (
        f"kernel {at} differs: timed run {_listed(here)}; counter run {_listed(there)}. "
        "The library chose other kernels; profile again"
    )


def _in_order_of(timed: Sequence[KernelRun], counted: Sequence[Profiled]) -> list[Profiled]:
    """The kernels of the counter run in the order of the timed run, which has the same."""
    waiting: dict[_Identity, deque[Profiled]] = {}
    for one in counted:
        waiting.setdefault(_identity(one.name, one.grid, one.block), deque()).append(one)
    return [waiting[_identity(kernel.name, kernel.grid, kernel.block)].popleft() for kernel in timed]


def base_name(name: str) -> str:
    """A kernel's base name, without namespaces, template arguments and parameters.

    CUPTI and ncu spell the rest differently, and ncu omits some namespaces.

    >>> base_name("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float const*)")
    'max_pool_forward_nchw'
    >>> base_name("void at::<unnamed>::max_pool_forward_nchw<float, int>(T2, const T1 *)")
    'max_pool_forward_nchw'

    CUPTI leaves very long names mangled.

    >>> base_name("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernelEEEvNT_6ParamsE")
    'Kernel'
    """
    if name.startswith("_Z"):
        return _mangled(name)
    bare = name
    for unnamed in _UNNAMED:
        bare = bare.replace(unnamed, "")
    for opening in "<(":
        bare = bare.split(opening, 1)[0]
    words = bare.split("::")[-1].split()
    return words[-1] if words else name


def _mangled(name: str) -> str:
    """The last part of a mangled nested name, before its template arguments: each part follows its length."""
    rest, last = name.removeprefix("_Z").removeprefix("N"), name
    while length := re.match(r"\d+", rest):
        start, end = length.end(), length.end() + int(length[0])
        last, rest = rest[start:end], rest[end:]
    return last


_Identity = tuple[str, Triple | None, Triple | None]


def _identity(name: str, grid: Triple | None, block: Triple | None) -> _Identity:
    return base_name(name), grid, block


def _listed(kernels: Sequence[_Identity]) -> str:
    shown = [f"{name} {_by(grid)} of {_by(block)}" for name, grid, block in kernels[:_SHOWN]]
    more = [f"{len(kernels) - _SHOWN} more"] if len(kernels) > _SHOWN else []
    return ", ".join(shown + more) or "none"


def _by(size: Triple | None) -> str:
    return "x".join(map(str, size or ()))
