"""Statements about what warps wait for, by layer kind: figures 5.7 (Tesla K40) and 5.8 (GTX 1080)."""

from __future__ import annotations

from lamina.explain import metrics
from lamina.explain.launches import Launch, mean
from lamina.explain.stalls import ISSUED
from lamina.pipeline.reproduce.sample import ACTIVATION, COMPUTE_STALLS, MEMORY_STALLS, Held, Sample, named, unknown
from lamina.pipeline.reproduce.sample import top_stalls as top

NORMALIZING = ("local_response_norm", "pooling", "softmax")
"""The kinds that the papers find bound by compute and memory on one GPU, and by memory on the other."""
FETCH = "no_instruction"
THROTTLE = ("lg_throttle", "drain")
"""What nvprof called ``stall_memory_throttle``."""
DEPENDENCY = "long_scoreboard"
"""What nvprof called ``stall_memory_dependency``."""
GONE = 5.0
"""Percent of the waiting below which a reason is no bottleneck."""


def _normalizations_wait_for_memory(sample: Sample) -> Held:
    found = _stalls(sample)
    if not found:
        return unknown("no stall reasons of LRN, pooling or softmax were counted")
    text = "; ".join(f"{kind} {named(stalls[:1])}" for kind, stalls in found.items())
    return Held(text, all(stalls[0][1] in MEMORY_STALLS for stalls in found.values()))


def _normalizations_wait_for_both(sample: Sample) -> Held:
    found = _stalls(sample)
    if not found:
        return unknown("no stall reasons of LRN, pooling or softmax were counted")
    text = "; ".join(f"{kind} {named(stalls)}" for kind, stalls in found.items())
    return Held(text, all(_both([reason for _, reason in stalls]) for stalls in found.values()))


def _both(reasons: list[str]) -> bool:
    return any(one in MEMORY_STALLS for one in reasons) and any(one in COMPUTE_STALLS for one in reasons)


def _stalls(sample: Sample) -> dict[str, list[tuple[float, str]]]:
    """The two largest stall reasons of each kind."""
    found = {kind: top(sample.of([kind])) for kind in NORMALIZING}
    return {kind: stalls for kind, stalls in found.items() if stalls}


def _first_linear_layer_waits_for_instructions(sample: Sample) -> Held:
    name, share, stalls = _fetching(sample)
    if share is None:
        return unknown("no instruction fetch stalls of a linear layer's weight gradient were counted")
    text = f"{name}: instruction fetch {share:.1f} %, {named(stalls)}"
    return Held(text, any(reason == FETCH for _, reason in stalls))


def _first_linear_layer_fetches_freely(sample: Sample) -> Held:
    held = _first_linear_layer_waits_for_instructions(sample)
    return held if held.holds is None else Held(held.ours, not held.holds)


def _fetching(sample: Sample) -> tuple[str, float | None, list[tuple[float, str]]]:
    """The first linear layer, its weight gradient's share of instruction fetch, and its two largest stalls."""
    row = next((row for row in sample.rows if row.kind == "linear" and row.phase == "backward_weight"), None)
    if row is None:
        return "", None, []
    launches = sample.launches[row.key]
    return row.layer, _share(launches, (FETCH,)), top(launches)


def _activations_throttle(sample: Sample) -> Held:
    launches = sample.of(ACTIVATION)
    throttle, dependency = _share(launches, THROTTLE), _share(launches, (DEPENDENCY,))
    if throttle is None or dependency is None:
        return unknown("the memory stalls of activations were not counted")
    known = (*THROTTLE, DEPENDENCY)
    others = max((value for value, reason in top(launches, 99) if reason not in known), default=0.0)
    text = f"throttle (drain, lg_throttle) {throttle:.0f} %, dependency (long_scoreboard) {dependency:.0f} %"
    return Held(text, min(throttle, dependency) > others)


def _memory_throttle_is_gone(sample: Sample) -> Held:
    kinds = dict.fromkeys(row.kind for row in sample.rows)
    shares = {kind: _share(sample.of([kind]), THROTTLE) for kind in kinds}
    known = {kind: share for kind, share in shares.items() if share is not None}
    if not known:
        return unknown("memory throttle was not counted")
    most = max(known, key=lambda kind: known[kind])
    return Held(f"at most {known[most]:.1f} % of the waiting ({most})", known[most] < GONE)


def _share(launches: list[Launch] | tuple[Launch, ...], reasons: tuple[str, ...]) -> float | None:
    """Percent of the waiting, as nvprof reported it; reasons that were not counted are none of it."""
    values = [value for reason in reasons if (value := mean(launches, metrics.stall(reason))) is not None]
    if not values:
        return None
    return 100 * sum(values) / (100 - (mean(launches, metrics.stall(ISSUED)) or 0.0))


RULES = (
    _normalizations_wait_for_memory,
    _normalizations_wait_for_both,
    _first_linear_layer_waits_for_instructions,
    _first_linear_layer_fetches_freely,
    _activations_throttle,
    _memory_throttle_is_gone,
)
