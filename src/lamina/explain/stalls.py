"""Why warps wait: the reasons that the hardware tells apart, what each means and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.explain import metrics
from lamina.explain.launches import Launch, mean

ISSUED = "selected"
"""Not a stall: the warp issued."""


@dataclass(frozen=True)
class Reason:
    """A stall reason: ``means`` what a warp waits for, ``do`` what shortens it.

    ``fine`` names the units of which one is simply busy where the reason is large beside it.
    """

    means: str
    do: str
    fine: tuple[str, ...] = ()


REASONS: dict[str, Reason] = {
    "long_scoreboard": Reason(
        "data from global memory, by way of L1, L2 or DRAM",
        "load earlier or more at once, keep more warps in flight, or reuse what is near",
    ),
    "short_scoreboard": Reason(
        "data from shared memory or the special function units",
        "keep more in registers, use wider shared loads, avoid bank conflicts",
    ),
    "barrier": Reason(
        "the other warps of the block at a barrier",
        "smaller blocks, or work split evenly between their warps",
    ),
    "wait": Reason(
        "the fixed latency of its previous instruction",
        "more independent instructions (unroll), or more warps",
    ),
    "math_pipe_throttle": Reason(
        "an arithmetic unit that is taken",
        "nothing but fewer operations or another unit",
        ("tensor cores", "multiply-add units"),
    ),
    "gmma": Reason(
        "a warpgroup's matrix product on the tensor cores",
        "a deeper pipeline of tiles if the tensor cores are not busy",
        ("tensor cores",),
    ),
    "not_selected": Reason(
        "its turn: other warps were ready too",
        "nothing; fewer warps with more work each would do",
        ("instruction issue",),
    ),
    "dispatch_stall": Reason("the dispatcher", "less pressure on one unit at a time"),
    "mio_throttle": Reason(
        "a place in the queue of shared memory, special functions and dynamic branches",
        "fewer and wider shared memory instructions",
    ),
    "lg_throttle": Reason(
        "a place in the queue of global memory instructions",
        "fewer and wider loads and stores",
    ),
    "tex_throttle": Reason("a place in the queue of texture instructions", "fewer texture fetches"),
    "drain": Reason("its stores to reach memory before it may exit", "wider, coalesced stores"),
    "membar": Reason("a memory fence", "fewer or narrower fences"),
    "imc_miss": Reason("a constant or parameter that is not in its cache", "fewer distinct constants, longer kernels"),
    "no_instruction": Reason(
        "instructions to be fetched",
        "shorter code or longer kernels: cold code is fetched once per launch",
    ),
    "branch_resolving": Reason("the target of a branch", "fewer branches"),
    "sleeping": Reason("the end of a sleep it asked for", "look for spinning synchronization"),
    "misc": Reason("something the hardware does not tell", "nothing to go by"),
}


def shares(launches: Sequence[Launch]) -> dict[str, float]:
    """Part of the waiting, from 0 to 1, that each reason has, largest first; nothing where it was not counted.

    Nsight Compute's percentages are of all the time warps spend, ``selected`` included; without it they add up to
    the waiting alone, which is what nvprof reported.
    """
    found = {reason: mean(launches, metrics.stall(reason)) for reason in REASONS}
    counted = {reason: value for reason, value in found.items() if value is not None}
    issued = mean(launches, metrics.stall(ISSUED))
    if issued is None or issued >= 100 or not counted:
        return {}
    return {
        reason: value / (100 - issued) for reason, value in sorted(counted.items(), key=lambda item: -item[1]) if value
    }
