from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.recorded import H200, recorded

from lamina.explain import findings, paragraphs, potential_saving
from lamina.explain.findings import RULES
from lamina.explain.headlines import headlines
from lamina.record import Finding, LayerRun

from ..report.records import ROOFS, bench, changed, failed, pick, timed, whole_step


def at_roof(rows: list[LayerRun], part: float = 0.8, spread: float = 0.02) -> list[LayerRun]:
    """The rows with each phase at the same part of its roof."""
    rate = {row: ROOFS.gemm_gflops[row.precision] for row in rows}
    best = {row: max((row.flops or 0) / rate[row], (row.bytes or 0) / ROOFS.copy_gbs) / 1e3 for row in rows}
    return [timed(row, best[row] / part, spread) for row in rows]


def of(rule: str, rows: list[LayerRun]) -> list[Finding]:
    return [finding for finding in findings(rows, ROOFS) if finding.rule == rule]


def slower(rows: list[LayerRun], layer: str, phase: str, times: float) -> list[LayerRun]:
    row = pick(rows, layer, phase)
    assert row.timing is not None
    return changed(rows, row, timed(row, row.timing.median_us * times, spread=0.02))


def test_dominant_layers_are_the_fewest_that_cover_most_of_the_step() -> None:
    rows = [timed(row, 10.0) for row in bench()]
    for phase in ("forward", "backward_data", "backward_weight"):
        rows = slower(rows, "conv2", phase, 90)
        rows = slower(rows, "fc6", phase, 20)
    (it,) = of("dominant layers", rows)
    total = 38 * 10 + 3 * 900 + 3 * 200
    assert it.claim == "2 of 18 layers take 90% of the step: conv2 (73%), fc6 (16%)"
    assert it.evidence == pytest.approx({"conv2": 2700 / total, "fc6": 600 / total, "total_us": total})
    assert it.layer is None


def test_a_phase_below_its_roofline_is_reported_with_its_cost() -> None:
    rows = at_roof(bench())
    assert of("below roofline", rows) == []
    (it,) = of("below roofline", slower(rows, "conv2", "backward_weight", 4))
    assert (it.layer, it.phase) == ("conv2", "backward_weight")
    assert it.evidence["share of roofline"] == pytest.approx(0.2)
    part = it.evidence["share of step"]
    assert isinstance(part, float)
    assert it.claim.startswith("conv2 backward_weight reaches 20% of its compute roofline; at the roofline")
    assert f"{0.8 * part:.0%} shorter" in it.claim


def test_gains_come_largest_first_and_small_phases_not_at_all() -> None:
    rows = at_roof(bench())
    for layer, phase in (("conv1", "forward"), ("conv2", "forward"), ("relu7", "forward")):
        rows = slower(rows, layer, phase, 3)
    assert [it.layer for it in of("below roofline", rows)] == ["conv2", "conv1"]


@pytest.mark.parametrize("phase", ["backward_data", "backward_weight", "forward"])
def test_an_inefficient_direction_is_reported(phase: str) -> None:
    rows = at_roof(bench())
    assert of("imbalance", rows) == []
    found = of("imbalance", slower(rows, "conv4", phase, 3))
    assert {(it.layer, it.phase) for it in found} == {("conv4", phase)}
    assert f"conv4 {phase} takes 3.0 times as long as" in found[0].claim


def test_backward_with_more_work_may_take_longer() -> None:
    rows = at_roof(bench())
    back = pick(rows, "conv4", "backward_data")
    assert back.flops is not None
    rows = changed(rows, back, replace(back, flops=4 * back.flops))
    assert of("imbalance", slower(rows, "conv4", "backward_data", 4)) == []


def test_without_flops_there_is_no_imbalance() -> None:
    rows = at_roof(bench())
    for phase in ("forward", "backward_data", "backward_weight"):
        row = pick(rows, "conv4", phase)
        rows = changed(rows, row, replace(row, flops=None))
    assert of("imbalance", slower(rows, "conv4", "backward_data", 9)) == []


def test_launch_bound_phases_are_counted_together() -> None:
    rows = [row for row in at_roof(bench(batch=4)) if row.kind in ("activation", "pooling")]
    (it,) = of("launch bound", rows)
    short = [row for row in rows if row.timing and row.timing.median_us < 2 * ROOFS.launch_us]
    assert it.evidence["phases"] == len(short)
    assert 1 < len(short) < len(rows)
    assert it.claim.startswith(f"{len(short)} phases are shorter than 2 kernel launches")


def test_phases_above_the_roofline_are_reported() -> None:
    rows = at_roof(bench())
    assert of("above roofline", rows) == []
    (it,) = of("above roofline", slower(rows, "conv3", "forward", 0.5))
    assert it.evidence == pytest.approx({"conv3 forward share of roofline": 1.6})


@pytest.mark.parametrize(
    ("times", "words"),
    [(1.25, "20% of the step is spent between the layers"), (0.8, "overlap"), (1.02, None)],
)
def test_the_whole_step_is_compared_with_its_layers(times: float, words: str | None) -> None:
    rows = at_roof(bench())
    total = sum(row.timing.median_us for row in rows if row.timing)
    found = of("step gap", [*rows, timed(whole_step(rows, 1.0), total * times, spread=0.01)])
    assert [words in it.claim for it in found if words] == ([True] if words else [])
    assert len(found) == (words is not None)


def test_a_step_with_a_missing_phase_is_not_compared() -> None:
    rows = at_roof(bench())
    rows = changed(rows, rows[3], failed(rows[3]))
    assert of("step gap", [*rows, whole_step(rows, 1e6)]) == []


def test_failures_of_one_reason_are_one_finding() -> None:
    rows = bench()
    for layer in ("fc6", "fc7"):
        rows = changed(rows, pick(rows, layer), failed(pick(rows, layer), "out of memory"))
    rows = changed(rows, pick(rows, "conv1"), failed(pick(rows, "conv1"), "no algorithm"))
    alone, together = of("failed", rows)
    assert (alone.layer, alone.phase, alone.claim) == (
        "conv1",
        "forward",
        "conv1 forward failed: no algorithm",
    )
    assert (together.layer, together.claim) == (None, "fc6 forward, fc7 forward failed: out of memory")
    assert alone.confidence == together.confidence == 1


def test_skipped_is_not_failed() -> None:
    rows = bench()
    skipped = replace(failed(rows[0], "the input needs no gradient"), outcome="skipped")
    (it,) = of("skipped", changed(rows, rows[0], skipped))
    assert it.claim == "conv1 forward was skipped: the input needs no gradient"


def test_noise_is_named_and_lowers_confidence() -> None:
    quiet = slower(at_roof(bench()), "conv2", "forward", 4)
    row = pick(quiet, "conv2")
    assert row.timing is not None
    loud = changed(quiet, row, timed(row, row.timing.median_us, spread=0.3))
    assert of("noisy", quiet) == []
    (it,) = of("noisy", loud)
    assert (it.layer, it.evidence) == ("conv2", pytest.approx({"conv2 forward spread": 0.3}))
    before, after = of("below roofline", quiet), of("below roofline", loud)
    assert before[0].confidence == pytest.approx(0.78)
    assert after[0].confidence == pytest.approx(0.56)


def test_a_busy_machine_is_a_finding_and_a_headline() -> None:
    rows = at_roof(bench())
    noted = [replace(row, note="other processes use 2.0 of 2 cores") if row.layer == "conv2" else row for row in rows]
    assert of("busy machine", rows) == []
    (it,) = of("busy machine", noted)
    assert "times are unreliable, such as conv2" in it.claim and "--wait-idle" in it.claim
    assert it.claim in [found.claim for found in headlines(noted, ROOFS)]
    assert headlines(rows, ROOFS) == tuple(found for found in headlines(noted, ROOFS) if found.rule != "busy machine")


def test_each_setting_is_explained_apart_and_named() -> None:
    rows = [*slower(at_roof(bench()), "conv2", "forward", 4), *at_roof(bench("bf16"))]
    (it,) = of("below roofline", rows)
    assert it.claim.startswith("fp32: conv2 forward reaches")
    assert it.evidence["setting"] == "fp32"
    assert [found.evidence["setting"] for found in of("dominant layers", rows)] == ["fp32", "bf16"]


def test_without_roofs_rules_that_need_them_yield_nothing() -> None:
    rows = slower(at_roof(bench()), "conv2", "backward_weight", 4)
    assert {it.rule for it in findings(rows, None)} == {"dominant layers", "imbalance"}


def test_no_rows_no_findings() -> None:
    assert findings([], ROOFS) == ()
    assert len(RULES) == len(set(RULES)) == 27


KERNELS = recorded()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_missing_counters_break_nothing(seed: int, kept: float) -> None:
    random, (rows, kernels, counters) = Random(seed), KERNELS
    some = [it for it in counters if random.random() < kept]
    some = [replace(it, value=None) if random.random() < 0.2 else it for it in some]
    launched = [it for it in kernels if random.random() < 0.9]
    for roofs in (H200, None):
        for it in findings(rows, roofs, launched, some):
            assert 0 <= it.confidence <= 1 and 0 <= potential_saving(it) <= 1, it
            assert "None" not in it.claim and "nan" not in it.claim, it
        assert all(it.text for it in paragraphs(rows, roofs, launched, some))


def test_findings_are_ranked_by_potential_saving() -> None:
    found = findings(KERNELS[0], H200, *KERNELS[1:])
    ranks = [potential_saving(it) for it in found if it.rule not in ("dominant layers", "bottlenecks")]
    assert ranks == sorted(ranks, reverse=True) and ranks[0] > 0
    assert [it.rule for it in found[:2]] == ["dominant layers", "bottlenecks"]
