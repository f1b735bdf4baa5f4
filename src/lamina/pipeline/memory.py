"""``bench --memory``: which tensors of a network share which chunk of the arena, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lamina import build, run
from lamina.accelerate.common.choices import check_choice
from lamina.build import Target
from lamina.build.network import DTYPES
from lamina.errors import UsageError
from lamina.spec import Phase


@dataclass(frozen=True)
class Memory:
    """A network's arena. ``chunks``: for each chunk id its bytes and its tenants, in order of time."""

    chunks: tuple[tuple[int, tuple[str, ...]], ...]
    planned_bytes: int
    separate_bytes: int
    live_bytes: int


def memory(target: Target, batch: int, phases: Sequence[Phase | str], precision: str) -> Memory:
    """Plan the arena of a network without computing anything.

    Tenants are ``layer`` for a layer's result and ``d(layer)`` for the gradient with respect to it.

    Raises:
        UsageError: a phase or the precision is unknown, or the batch is no whole number of at least 1.
    """
    for phase in phases:
        check_choice("phase", phase, tuple(Phase))
    check_choice("precision", precision, DTYPES)
    if not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch: expected a whole number of at least 1, got {batch!r}")
    with torch.device("meta"):
        module = build.to_precision(target.make(None), precision, torch.device("meta"), "nchw")
        inputs = target.empty(batch, precision)
    trace = build.trace(module, *inputs)
    plan = run.memory_plan(trace, backward=any(phase != Phase.FORWARD for phase in phases))
    makers = {number: call.name for call in trace.calls for number in call.outputs}
    tenants: list[list[tuple[int, str]]] = [[] for _ in plan.chunks]
    for buffer in plan.buffers:
        what, number = buffer.key.split()
        name = makers[int(number)]
        tenants[plan.chunk_of[buffer.key]].append((buffer.first, name if what == "value" else f"d({name})"))
    chunks = zip(plan.chunks, (tuple(name for _, name in sorted(each)) for each in tenants), strict=True)
    return Memory(tuple(chunks), plan.planned_bytes, plan.separate_bytes, plan.live_bytes)
