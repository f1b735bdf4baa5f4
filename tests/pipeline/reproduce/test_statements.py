"""Statements about stalls, hit rates and LRN: each holds in one synthetic profile and fails in another."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.report.records import bench, run, timed

from lamina.explain import metrics
from lamina.pipeline.explain import Side
from lamina.pipeline.reproduce import hit_statements as hits
from lamina.pipeline.reproduce.sample import Held, Sample
from lamina.pipeline.reproduce.statements import CHECKS, check
from lamina.record import Counter, KernelRun

At = Mapping[tuple[str, str], Mapping[str, float]]
"""Counters by kind (or layer) and phase; a phase of ``*`` is any."""


def profile(counted: At, times: Mapping[tuple[str, str], float] | None = None) -> Sample:
    """One kernel a phase, with the counters of its kind. The last layer of AlexNet becomes a softmax, pool1 an LRN."""
    rows = []
    for row in bench():
        kind = {"pool1": "local_response_norm", "relu7": "softmax"}.get(row.layer, row.kind)
        us = (times or {}).get((kind, row.phase), 10.0)
        rows.append(timed(replace(row, kind=kind), us))
    kernels = tuple(KernelRun(row.key, 0, "k", (1, 1, 1), (32, 1, 1), 16, 0, 10.0) for row in rows)
    counters = []
    for row in rows:
        found: dict[str, float] = {}
        for (name, phase), values in counted.items():
            if name in (row.kind, row.layer) and phase in ("*", row.phase):
                found |= values
        counters += [Counter(row.key, 0, metric, value, "%") for metric, value in found.items()]
    return Sample(Side(run(), tuple(rows), kernels, tuple(counters)))


def stalls(**shares: float) -> dict[str, float]:
    return {metrics.stall(reason): share for reason, share in shares.items()}


MEMORY, BOTH, COMPUTE = (
    stalls(long_scoreboard=60, lg_throttle=20, wait=5),
    stalls(long_scoreboard=40, wait=30),
    stalls(wait=50, not_selected=20, long_scoreboard=1),
)
KINDS = ("local_response_norm", "pooling", "softmax")


@pytest.mark.parametrize(
    ("found", "memory", "both"), [(MEMORY, True, False), (BOTH, True, True), (COMPUTE, False, False)]
)
def test_what_bounds_lrn_pooling_and_softmax(found: Mapping[str, float], memory: bool, both: bool) -> None:
    sample = profile({(kind, "*"): found for kind in KINDS})
    assert check("normalizations_wait_for_memory", sample).holds is memory
    assert check("normalizations_wait_for_both", sample).holds is both


def test_one_kind_that_differs_is_enough_to_fail() -> None:
    sample = profile({(kind, "*"): COMPUTE if kind == "softmax" else MEMORY for kind in KINDS})
    held = check("normalizations_wait_for_memory", sample)
    assert held.holds is False and "softmax wait 50 %" in held.ours


@pytest.mark.parametrize(("fetch", "holds"), [(40.0, True), (3.0, False)])
def test_instruction_fetch_of_the_first_linear_layers_weight_gradient(fetch: float, holds: bool) -> None:
    found = stalls(no_instruction=fetch, not_selected=45, long_scoreboard=30, selected=20)
    sample = profile({("fc6", "backward_weight"): found, ("fc6", "forward"): stalls(no_instruction=99)})
    held = check("first_linear_layer_waits_for_instructions", sample)
    assert held.holds is holds and held.ours.startswith(f"fc6: instruction fetch {fetch / 0.8:.1f} %")
    assert check("first_linear_layer_fetches_freely", sample).holds is not holds


@pytest.mark.parametrize(
    ("found", "throttles", "gone"),
    [
        (stalls(long_scoreboard=50, drain=20, lg_throttle=10, wait=5), True, False),
        (stalls(long_scoreboard=80, drain=1, lg_throttle=1, wait=5), False, True),
        (stalls(long_scoreboard=10, drain=20, lg_throttle=10, wait=50), False, False),
    ],
)
def test_memory_throttle_of_activations(found: Mapping[str, float], throttles: bool, gone: bool) -> None:
    sample = profile({("activation", "*"): found, ("convolution", "*"): stalls(drain=1)})
    assert check("activations_throttle", sample).holds is throttles
    held = check("memory_throttle_is_gone", sample)
    assert held.holds is gone and "(activation)" in held.ours


@pytest.mark.parametrize(("linear", "others", "holds"), [(60.0, 10.0, True), (10.0, 60.0, False)])
def test_hit_rates_of_l1_and_texture(linear: float, others: float, holds: bool) -> None:
    rates = {kind: linear if kind in ("convolution", "linear") else others for kind in (
        "convolution", "linear", "activation", "flatten", *KINDS
    )}  # fmt: skip
    sample = profile({(kind, "*"): {metrics.L1_HIT: rate} for kind, rate in rates.items()})
    held = check("linear_layers_hit_in_texture", sample)
    assert held.holds is holds and held.ours.startswith(f"{linear:.0f} % against {others:.0f} %")
    assert check("activations_hit_in_texture", sample).holds is (others > 10)


def test_activations_that_never_hit() -> None:
    assert check("activations_hit_in_texture", profile({("activation", "*"): {metrics.L1_HIT: 0.0}})).holds is False


@pytest.mark.parametrize(("rate", "holds"), [(0.01, True), (0.5, False)])
def test_l1_serves_few_or_many_phases(rate: float, holds: bool) -> None:
    counted = {hits.LOADS: 1000.0, hits.HITS: 1000.0 * rate}
    sample = profile({("convolution", "*"): counted, ("fc6", "*"): {hits.LOADS: 10.0, hits.HITS: 9.0}})
    held = check("l1_is_hardly_used", sample)
    assert held.holds is holds and "most: fc6" in held.ours and "90%" in held.ours


@pytest.mark.parametrize(("forward", "backward", "holds"), [(20.0, 40.0, True), (40.0, 20.0, False)])
def test_lrn_forward_against_backward(forward: float, backward: float, holds: bool) -> None:
    fast = profile({})
    slow = profile(
        {}, {("local_response_norm", "forward"): forward, ("local_response_norm", "backward_data"): backward}
    )
    held = check("lrn_gains_more_backward", Sample(fast.side, slow.side))
    assert held == Held(f"backward {backward / 10:.2f}x, forward {forward / 10:.2f}x", holds)
    assert check("lrn_gains_more_backward", fast).holds is None


NEW = [name for name in CHECKS if name.startswith(("normal", "first", "memory", "activations_throttle", "l1", "lrn"))]


@pytest.mark.parametrize("name", NEW)
def test_without_counters_nothing_is_decided(name: str) -> None:
    held = check(name, profile({}))
    assert held.holds is None and held.ours


def test_phases_without_counters_are_named() -> None:
    sample = profile({("convolution", "*"): MEMORY})
    assert "conv1 forward" not in sample.uncounted and "relu1 forward" in sample.uncounted
    assert profile({}).uncounted == ()
