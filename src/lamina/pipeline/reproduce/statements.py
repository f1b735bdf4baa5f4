"""Checks of papers' statements about their figures against a profile, by layer kind, for any network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lamina.errors import UsageError, nearest
from lamina.explain import metrics
from lamina.explain.launches import mean, total
from lamina.pipeline.reproduce import hit_statements, stall_statements
from lamina.pipeline.reproduce.sample import (
    ACTIVATION,
    COMPUTE_STALLS,
    LINEAR,
    MEMORY_STALLS,
    Held,
    Sample,
    listed,
    named,
    top_stalls,
    unknown,
)
from lamina.pipeline.rows import WHOLE_STEP

STATEMENT = "statement"
"""The quantity of a row with a statement instead of a value."""
FASTER_BY = ("convolution", "linear", "pooling")
IPC = "sm__inst_executed.avg.per_cycle_active"
LRN = "local_response_norm"
COMPARING = ("speedups_differ", "lrn_gains_more_backward")
"""Checks that compare two GPUs."""
SHARED_LOADS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"

Check = Callable[[Sample], Held]


def check(name: str, sample: Sample) -> Held:
    """Check a statement against a profile.

    Raises:
        UsageError: there is no such rule.
    """
    if name not in CHECKS:
        raise UsageError(f"check {name!r} is unknown: {nearest(name, CHECKS)}")
    return CHECKS[name](sample)


def _linear_layers_dominate(sample: Sample) -> Held:
    share = sample.us(LINEAR) / sample.us()
    return Held(f"{share:.0%} of the layers' time", share > 0.5)


def _convolutions_dominate(sample: Sample) -> Held:
    share = sample.us(["convolution"]) / sample.us(LINEAR)
    return Held(f"{share:.0%} of the time of linear transformations", share > 0.5)


def _larger_batches_pay(sample: Sample) -> Held:
    whole = {row.batch: row.timing.median_us for row in sample.side.rows if row.phase == WHOLE_STEP and row.timing}
    if len(whole) < 2:
        return unknown("one batch size only")
    each = [whole[batch] / batch for batch in sorted(whole)]
    times = ", ".join(f"{us:.1f} us at {batch}" for batch, us in zip(sorted(whole), each, strict=True))
    return Held(f"per image {times}", each == sorted(each, reverse=True))


def _speedups_differ(sample: Sample) -> Held:
    if sample.other is None:
        return unknown("needs a second run: --against")
    there = Sample(sample.other)
    gains = {kind: there.us([kind]) / sample.us([kind]) for kind in (*FASTER_BY, *ACTIVATION) if sample.us([kind])}
    gains = {kind: gain for kind, gain in gains.items() if gain}
    if not {*ACTIVATION} & {*gains} or len(gains) < 2:
        return unknown("the runs do not have activations and other layers")
    others = [gain for kind, gain in gains.items() if kind not in ACTIVATION]
    speedups = ", ".join(f"{kind} {gain:.2f}x" for kind, gain in gains.items())
    return Held(speedups, min(others) > gains["activation"])


def _lrn_gains_more_backward(sample: Sample) -> Held:
    if sample.other is None:
        return unknown("needs a second run: --against")
    times = [(_lrn_us(one, forward=True), _lrn_us(one, forward=False)) for one in (sample, Sample(sample.other))]
    (forward, backward), (forward_there, backward_there) = times
    if not (forward and backward and forward_there and backward_there):
        return unknown("no local response normalization in both directions")
    gains = forward_there / forward, backward_there / backward
    return Held(f"backward {gains[1]:.2f}x, forward {gains[0]:.2f}x", gains[1] > gains[0])


def _lrn_us(sample: Sample, forward: bool) -> float:
    rows = (row for row in sample.rows if row.kind == LRN and (row.phase == "forward") == forward)
    return sum(row.timing.median_us for row in rows if row.timing)


def _fp_instructions_are_linear(sample: Sample) -> Held:
    counts = [
        sum(
            total(sample.of(kinds), metric) or 0.0
            for metric in (metrics.FP_ADDS, metrics.FP_MULTIPLIES, metrics.FP_FUSED)
        )
        for kinds in (LINEAR, sample.others)
    ]
    if not sum(counts):
        return unknown("no such instructions were counted")
    share = counts[0] / sum(counts)
    return Held(f"{share:.0%} of single-precision instructions outside tensor cores", share > 0.5)


def _convolutions_wait_for_compute(sample: Sample) -> Held:
    return _waits(sample, ["convolution"], COMPUTE_STALLS)


def _activations_wait_for_memory(sample: Sample) -> Held:
    return _waits(sample, ACTIVATION, MEMORY_STALLS)


def _linear_layers_use_units(sample: Sample) -> Held:
    used = {}
    for kinds in (LINEAR, sample.others):
        busy = [mean(sample.of(kinds), metric) for metric in (metrics.TENSOR, metrics.FMA)]
        used[kinds] = max((value for value in busy if value is not None), default=None)
    linear, rest = used.values()
    if linear is None or rest is None:
        return unknown("no unit was counted")
    return Held(f"{linear:.0f} % against {rest:.0f} % of the busiest math pipeline", linear > rest)


def _activations_do_not_hit(sample: Sample) -> Held:
    return _least(sample.means(metrics.L2_HIT), "activation", "% L2 hits")


def _shared_memory_is_for_linear_layers(sample: Sample) -> Held:
    loads = [total(sample.of(kinds), SHARED_LOADS) for kinds in (LINEAR, sample.others)]
    known = [count or 0.0 for count in loads]
    if not sum(known):
        return unknown("no loads of shared memory were counted")
    return Held(f"{known[0] / sum(known):.0%} of the loads from shared memory", known[0] > 0.9 * sum(known))


def _activations_load_dram(sample: Sample) -> Held:
    found = sample.means(metrics.DRAM)
    if "activation" not in found or len(found) < 2:
        return unknown("DRAM throughput was not counted")
    return Held(listed(found, "% of DRAM's peak"), found["activation"] == max(found.values()))


def _convolutions_use_near_memory(sample: Sample) -> Held:
    near, far = (mean(sample.of(["convolution"]), metric) for metric in (metrics.SHARED, metrics.DRAM))
    if near is None or far is None:
        return unknown("shared memory or DRAM was not counted")
    return Held(f"shared memory {near:.0f} %, DRAM {far:.0f} % of peak", near > far)


def _activations_issue_least(sample: Sample) -> Held:
    return _least(sample.means(IPC), "activation", "instructions per cycle")


def _activations_occupy_least(sample: Sample) -> Held:
    return _least(sample.means(metrics.OCCUPANCY), "activation", "% occupancy")


def _activations_are_memory_bound(sample: Sample) -> Held:
    launches = sample.of(ACTIVATION)
    compute, memory = mean(launches, metrics.FMA), mean(launches, metrics.DRAM)
    if compute is None or memory is None:
        return unknown("arithmetic or DRAM was not counted")
    return Held(f"arithmetic {compute:.0f} %, DRAM {memory:.0f} % of peak", memory > compute)


def _on_chip_memory_binds(sample: Sample) -> Held:
    """Use of on-chip memory, device memory and functional units, over all kernels, weighted by time."""
    launches = [launch for row in sample.rows for launch in sample.launches[row.key]]
    units = [value for metric in (metrics.FMA, metrics.TENSOR) if (value := mean(launches, metric)) is not None]
    used = {"on-chip memory": mean(launches, metrics.SHARED), "device memory": mean(launches, metrics.DRAM)}
    used["functional units"] = max(units, default=None)
    known = {name: value for name, value in used.items() if value is not None}
    if len(known) < len(used):
        return unknown("not all three were counted")
    text = ", ".join(f"{name} {value:.0f} %" for name, value in known.items())
    return Held(text, max(known, key=lambda name: known[name]) == "on-chip memory")


def _waits(sample: Sample, kinds: Iterable[str], expected: Iterable[str]) -> Held:
    top = top_stalls(sample.of(kinds))
    if not top:
        return unknown("no stall reasons were counted")
    return Held(named(top), top[0][1] in expected)


def _least(found: Mapping[str, float], kind: str, unit: str) -> Held:
    if kind not in found or len(found) < 2:
        return unknown(f"no {unit} of {kind} beside others")
    return Held(listed(found, unit), found[kind] == min(found.values()))


CHECKS: Mapping[str, Check] = {
    rule.__name__.strip("_"): rule
    for rule in (
        _linear_layers_dominate,
        _convolutions_dominate,
        _larger_batches_pay,
        _speedups_differ,
        _lrn_gains_more_backward,
        _fp_instructions_are_linear,
        _convolutions_wait_for_compute,
        _activations_wait_for_memory,
        _linear_layers_use_units,
        _activations_do_not_hit,
        _shared_memory_is_for_linear_layers,
        _activations_load_dram,
        _convolutions_use_near_memory,
        _activations_issue_least,
        _activations_occupy_least,
        _activations_are_memory_bound,
        _on_chip_memory_binds,
        *stall_statements.RULES,
        *hit_statements.RULES,
    )
}
"""All checks, by the name in entries."""
