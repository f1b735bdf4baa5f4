"""Warp stall reasons of Nsight Compute: what each means and how to reduce it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.explain import metrics
from lamina.explain.launches import Launch, mean

ISSUED = "selected"
"""Not a stall: the warp issued."""


@dataclass(frozen=True)
class Reason:
    """A stall reason: what a warp ``waits_for``, and the ``advice`` that reduces the wait.

    If one of the units in ``expected_with`` is saturated, the stall is expected and needs no action.
    """

    waits_for: str
    advice: str
    expected_with: tuple[str, ...] = ()


REASONS: dict[str, Reason] = {
    "long_scoreboard": Reason(
        "data from global memory (L1, L2 or DRAM)",
        "prefetch, use wider loads, raise occupancy or increase data reuse",
    ),
    "short_scoreboard": Reason(
        "data from shared memory or the special function units",
        "keep more data in registers, use wider shared memory loads, avoid bank conflicts",
    ),
    "barrier": Reason(
        "other warps of the thread block at a barrier",
        "use smaller thread blocks or balance work between their warps",
    ),
    "wait": Reason(
        "the fixed latency of the previous instruction",
        "increase instruction-level parallelism (unroll) or occupancy",
    ),
    "math_pipe_throttle": Reason(
        "a math pipeline that is busy",
        "only fewer operations or another pipeline help",
        ("tensor cores", "FMA units"),
    ),
    "gmma": Reason(
        "a warpgroup matrix instruction (wgmma) on the tensor cores",
        "use a deeper software pipeline if the tensor cores are not busy",
        ("tensor cores",),
    ),
    "not_selected": Reason(
        "the scheduler, which selected another eligible warp",
        "no action needed; fewer warps with more work each would suffice",
        ("instruction issue",),
    ),
    "dispatch_stall": Reason("the dispatcher", "reduce pressure on a single pipeline"),
    "mio_throttle": Reason(
        "the full MIO instruction queue (shared memory, special functions, dynamic branches)",
        "use fewer and wider shared memory instructions",
    ),
    "lg_throttle": Reason(
        "the full LG instruction queue (local and global memory)",
        "use fewer and wider loads and stores",
    ),
    "tex_throttle": Reason("the full TEX instruction queue", "use fewer texture fetches"),
    "drain": Reason("its stores to complete before it exits", "use wider, coalesced stores"),
    "membar": Reason("a memory barrier", "use fewer fences or a narrower scope"),
    "imc_miss": Reason("an immediate constant cache miss", "use fewer distinct constants or longer kernels"),
    "no_instruction": Reason(
        "instruction fetch",
        "use shorter code or longer kernels: cold code is fetched once per launch",
    ),
    "branch_resolving": Reason("a branch target", "use fewer branches"),
    "sleeping": Reason("the end of a nanosleep", "check for spin-wait synchronization"),
    "misc": Reason("a reason that the hardware does not report", "no advice"),
}


def shares(launches: Sequence[Launch]) -> dict[str, float]:
    """Fraction of the stall time, from 0 to 1, of each reason, largest first; empty without counters.

    Nsight Compute's percentages are of all warp time, state ``selected`` included. Without that state they add up to
    the stall time alone, which is what nvprof reported.
    """
    found = {reason: mean(launches, metrics.stall(reason)) for reason in REASONS}
    counted = {reason: value for reason, value in found.items() if value is not None}
    issued = mean(launches, metrics.stall(ISSUED))
    if issued is None or issued >= 100 or not counted:
        return {}
    return {
        reason: value / (100 - issued) for reason, value in sorted(counted.items(), key=lambda item: -item[1]) if value
    }
