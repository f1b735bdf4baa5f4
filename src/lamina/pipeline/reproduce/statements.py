"""Checks of papers' statements about their figures against a profile, by layer kind, for any network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from lamina.errors import UsageError, nearest
from lamina.explain import metrics
from lamina.explain.launches import Launch, Launches, mean, total
from lamina.explain.stalls import ISSUED, REASONS
from lamina.pipeline.explain import Side
from lamina.pipeline.rows import WHOLE_STEP
from lamina.record import LayerRun

STATEMENT = "statement"
"""The quantity of a row with a statement instead of a value."""
LINEAR = ("convolution", "linear")
"""Linear data transformations, which the papers compare with all other layers."""
ACTIVATION = ("activation",)
FASTER_BY = ("convolution", "linear", "pooling")
COMPUTE_STALLS = ("wait", "not_selected", "math_pipe_throttle", "gmma", "dispatch_stall", "selected")
"""Stall reasons that more or faster cores would reduce."""
MEMORY_STALLS = ("long_scoreboard", "lg_throttle", "drain", "membar", "mio_throttle", "short_scoreboard")
IPC = "sm__inst_executed.avg.per_cycle_active"
SHARED_LOADS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"


@dataclass(frozen=True)
class Held:
    """Our result as text, and whether it agrees with the statement; ``None`` if the profile is not sufficient."""

    ours: str
    holds: bool | None


@dataclass(frozen=True)
class Sample:
    """A profile at its largest batch size. ``other`` is a second one to compare with."""

    side: Side
    other: Side | None = None

    @cached_property
    def rows(self) -> tuple[LayerRun, ...]:
        batch = max(row.batch for row in self.side.rows)
        return tuple(row for row in self.side.rows if row.batch == batch and row.phase != WHOLE_STEP and row.timing)

    @cached_property
    def launches(self) -> Launches:
        return Launches(self.side.kernels, self.side.counters)

    def us(self, kinds: Iterable[str] | None = None) -> float:
        """Time of the layers of the given kinds, or of all."""
        wanted = None if kinds is None else tuple(kinds)
        return sum(row.timing.median_us for row in self.rows if row.timing and (wanted is None or row.kind in wanted))

    def of(self, kinds: Iterable[str]) -> list[Launch]:
        """The kernels of the backward phases of the given kinds, or of all phases of an inference."""
        wanted = tuple(kinds)
        backward = [row for row in self.rows if row.phase != "forward"] or list(self.rows)
        return [launch for row in backward if row.kind in wanted for launch in self.launches[row.key]]

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The kinds that are not linear data transformations."""
        return tuple(dict.fromkeys(row.kind for row in self.rows if row.kind not in LINEAR))

    def means(self, metric: str) -> dict[str, float]:
        """A metric by layer kind, if it was collected."""
        found = {kind: mean(self.of([kind]), metric) for kind in dict.fromkeys(row.kind for row in self.rows)}
        return {kind: value for kind, value in found.items() if value is not None}


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
        return _unknown("one batch size only")
    each = [whole[batch] / batch for batch in sorted(whole)]
    times = ", ".join(f"{us:.1f} us at {batch}" for batch, us in zip(sorted(whole), each, strict=True))
    return Held(f"per image {times}", each == sorted(each, reverse=True))


def _speedups_differ(sample: Sample) -> Held:
    if sample.other is None:
        return _unknown("needs a second run: --against")
    there = Sample(sample.other)
    gains = {kind: there.us([kind]) / sample.us([kind]) for kind in (*FASTER_BY, *ACTIVATION) if sample.us([kind])}
    gains = {kind: gain for kind, gain in gains.items() if gain}
    if not {*ACTIVATION} & {*gains} or len(gains) < 2:
        return _unknown("the runs do not have activations and other layers")
    others = [gain for kind, gain in gains.items() if kind not in ACTIVATION]
    speedups = ", ".join(f"{kind} {gain:.2f}x" for kind, gain in gains.items())
    return Held(speedups, min(others) > gains["activation"])


def _fp_instructions_are_linear(sample: Sample) -> Held:
    counts = [
        sum(
            total(sample.of(kinds), metric) or 0.0
            for metric in (metrics.FP_ADDS, metrics.FP_MULTIPLIES, metrics.FP_FUSED)
        )
        for kinds in (LINEAR, sample.others)
    ]
    if not sum(counts):
        return _unknown("no such instructions were counted")
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
        return _unknown("no unit was counted")
    return Held(f"{linear:.0f} % against {rest:.0f} % of the busiest math pipeline", linear > rest)


def _activations_do_not_hit(sample: Sample) -> Held:
    return _least(sample.means(metrics.L2_HIT), "activation", "% L2 hits")


def _shared_memory_is_for_linear_layers(sample: Sample) -> Held:
    loads = [total(sample.of(kinds), SHARED_LOADS) for kinds in (LINEAR, sample.others)]
    known = [count or 0.0 for count in loads]
    if not sum(known):
        return _unknown("no loads of shared memory were counted")
    return Held(f"{known[0] / sum(known):.0%} of the loads from shared memory", known[0] > 0.9 * sum(known))


def _activations_load_dram(sample: Sample) -> Held:
    found = sample.means(metrics.DRAM)
    if "activation" not in found or len(found) < 2:
        return _unknown("DRAM throughput was not counted")
    return Held(_listed(found, "% of DRAM's peak"), found["activation"] == max(found.values()))


def _convolutions_use_near_memory(sample: Sample) -> Held:
    near, far = (mean(sample.of(["convolution"]), metric) for metric in (metrics.SHARED, metrics.DRAM))
    if near is None or far is None:
        return _unknown("shared memory or DRAM was not counted")
    return Held(f"shared memory {near:.0f} %, DRAM {far:.0f} % of peak", near > far)


def _activations_issue_least(sample: Sample) -> Held:
    return _least(sample.means(IPC), "activation", "instructions per cycle")


def _activations_occupy_least(sample: Sample) -> Held:
    return _least(sample.means(metrics.OCCUPANCY), "activation", "% occupancy")


def _activations_are_memory_bound(sample: Sample) -> Held:
    launches = sample.of(ACTIVATION)
    compute, memory = mean(launches, metrics.FMA), mean(launches, metrics.DRAM)
    if compute is None or memory is None:
        return _unknown("arithmetic or DRAM was not counted")
    return Held(f"arithmetic {compute:.0f} %, DRAM {memory:.0f} % of peak", memory > compute)


def _on_chip_memory_binds(sample: Sample) -> Held:
    """Use of on-chip memory, device memory and functional units, over all kernels, weighted by time."""
    launches = [launch for row in sample.rows for launch in sample.launches[row.key]]
    units = [value for metric in (metrics.FMA, metrics.TENSOR) if (value := mean(launches, metric)) is not None]
    used = {"on-chip memory": mean(launches, metrics.SHARED), "device memory": mean(launches, metrics.DRAM)}
    used["functional units"] = max(units, default=None)
    known = {name: value for name, value in used.items() if value is not None}
    if len(known) < len(used):
        return _unknown("not all three were counted")
    text = ", ".join(f"{name} {value:.0f} %" for name, value in known.items())
    return Held(text, max(known, key=lambda name: known[name]) == "on-chip memory")


def _waits(sample: Sample, kinds: Iterable[str], expected: Iterable[str]) -> Held:
    launches = sample.of(kinds)
    shares = {reason: mean(launches, metrics.stall(reason)) for reason in REASONS if reason != ISSUED}
    top = sorted(((value, reason) for reason, value in shares.items() if value), reverse=True)[:2]
    if not top:
        return _unknown("no stall reasons were counted")
    reasons = " and ".join(f"{reason} {value:.0f} %" for value, reason in top)
    return Held(reasons, top[0][1] in expected)


def _least(found: Mapping[str, float], kind: str, unit: str) -> Held:
    if kind not in found or len(found) < 2:
        return _unknown(f"no {unit} of {kind} beside others")
    return Held(_listed(found, unit), found[kind] == min(found.values()))


def _listed(found: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{kind} {value:.3g}" for kind, value in found.items()) + f" {unit}"


def _unknown(reason: str) -> Held:
    return Held(reason, None)


CHECKS: Mapping[str, Check] = {
    rule.__name__.strip("_"): rule
    for rule in (
        _linear_layers_dominate,
        _convolutions_dominate,
        _larger_batches_pay,
        _speedups_differ,
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
    )
}
"""All checks, by the name in entries."""
