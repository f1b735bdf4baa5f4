"""The findings at the top: what, how much and what to do, the answer first."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.explain.recorded import H200, recorded, whole
from tests.report.convnext import GPU_US, STEP_US, convnext, kernels
from tests.report.records import ROOFS, bench, changed, failed, pick, timed, whole_step

from lamina.explain import findings, headlines, paragraphs, potential_saving
from lamina.explain.headlines import MOST
from lamina.pipeline.imports import import_file
from lamina.recipes import recordings
from lamina.record import LayerRun
from lamina.store import Store, open_store

IDLE = "the GPU is idle for 60% of the step (launch-bound): its {} 7.20 ms on the GPU, the step 17.90 ms by the wall"


@pytest.mark.parametrize(("with_kernels", "took"), [(False, "layers take"), (True, "1119 kernels take")])
def test_an_idle_gpu_is_the_first_sentence(with_kernels: bool, took: str) -> None:
    rows = convnext()
    launched = kernels(rows) if with_kernels else []
    first = headlines(rows, ROOFS, launched)[0]
    assert first.claim.startswith(IDLE.format(took))
    assert first.claim.endswith("torch.compile or CUDA graphs would give up to 2.5x")
    assert potential_saving(first) == pytest.approx(1 - GPU_US / STEP_US)
    assert findings(rows, ROOFS, launched)[0].rule == "launch overhead"
    assert paragraphs(rows, ROOFS, launched)[0].text.startswith("The step takes 17.90 ms")


def test_repeated_layers_are_one_headline_with_a_pattern_and_a_count() -> None:
    found = headlines(convnext(), ROOFS)
    assert len(found) == MOST
    assert [it.claim.partition(" reaches")[0] for it in found[1:4]] == [
        "stages.*.blocks.*.conv_dw (18 layers) forward",
        "stages.*.blocks.*.norm (18 layers) forward",
        "stages.*.blocks.*.mlp.fc1 (18 layers) forward",
    ]
    for it in found[1:4]:
        assert "up to" in it.claim and "of the GPU time: " in it.claim and "\n" not in it.claim
    assert found[4].rule == "dominant layers" and "stages.*.blocks.*.norm (15 layers, 19%)" in found[4].claim


def test_the_wall_clock_may_be_another_setting() -> None:
    on_gpu = [*convnext(step_us=None)]
    step = whole_step(on_gpu, GPU_US)
    step = replace(step, layer="convnext_tiny", precision="bf16", batch=8)
    by_wall = [
        replace(row, timing=replace(row.timing, clock="wall", l2="warm"))
        for row in [*on_gpu[:5], timed(step, STEP_US, clock="wall")]
        if row.timing
    ]
    found = headlines([*on_gpu, timed(step, GPU_US, clock="cupti"), *by_wall], ROOFS)
    cupti = [it for it in found if "cupti" in str(it.evidence.get("setting"))]
    assert "the GPU is idle for 60% of the step" in cupti[0].claim


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_without_gpu_times_the_gpu_is_not_said_to_be_idle(clock: str) -> None:
    rows = [replace(row, timing=row.timing and replace(row.timing, clock=clock)) for row in convnext()]
    assert not any("idle" in it.claim for it in headlines(rows, ROOFS))


def test_a_busy_gpu_is_no_headline() -> None:
    assert not any("idle" in it.claim for it in headlines(convnext(step_us=1.02 * GPU_US), ROOFS))
    (small,) = (it for it in headlines(convnext(step_us=1.2 * GPU_US), ROOFS) if it.rule == "launch overhead")
    assert potential_saving(small) == pytest.approx(1 - 1 / 1.2)


def test_failures_follow_at_once_and_leave_an_upper_bound() -> None:
    rows = convnext()
    for layer in ("stages.0.blocks.1.norm", "stages.2.blocks.3.norm"):
        rows = changed(rows, pick(rows, layer), failed(pick(rows, layer), "out of memory"))
    first, second = headlines(rows, ROOFS)[:2]
    assert "idle for at most" in first.claim
    assert second.claim == "2 of 392 phases failed: stages.*.blocks.*.norm forward (2 layers): out of memory"


def test_each_setting_has_its_own() -> None:
    found = headlines([*bench(), *bench("bf16")], ROOFS)
    settings = [it.evidence["setting"] for it in found]
    assert settings == sorted(settings, reverse=True) and 2 <= len(found) <= 2 * MOST
    assert all(it.claim.startswith(f"{it.evidence['setting']}: ") for it in found)


def test_no_pattern_is_told_twice_and_savings_fall() -> None:
    rows, launched, counters = recorded()
    found = headlines([*rows, whole(1.1 * sum(it.duration_us for it in launched), rows)], H200, launched, counters)
    layers = [it.claim.split()[0] for it in found if it.layer]
    assert len(layers) == len(set(layers)) > 0
    savings = [potential_saving(it) for it in found[:-1]]
    assert savings == sorted(savings, reverse=True) and savings[-1] > 0


@pytest.fixture(scope="module")
def resnet() -> Iterator[Store]:
    with open_store(":memory:") as store:
        import_file(recordings.path("resnet50"), store)
        yield store


def test_a_recorded_network_on_an_h200_is_launch_bound(resnet: Store) -> None:
    this = resnet.run("latest")
    rows = [row for row in resnet.layers(this.id) if row.batch == 8]
    launched = [it for it in resnet.kernels(this.id) if it.key.batch == 8]
    found = headlines(rows, resnet.roofs(this.id)[0], launched)
    assert found[0].claim.startswith("the GPU is idle for 58% of the step (launch-bound): its 695 kernels take 5.75 ms")
    assert found[0].claim.endswith("up to 2.4x") and len(found) <= MOST


def single() -> list[LayerRun]:
    return [row for row in bench() if row.layer == "fc6"]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        single(),
        [failed(row) for row in bench()],
        [replace(failed(row), outcome="skipped") for row in bench()],
        [replace(row, flops=None, bytes=None) for row in bench()],
        [row for row in bench() if row.phase == "forward"],
        [*bench(), *bench("bf16"), *bench("tf32"), *bench(impl="sparse"), *bench(impl="circulant[block_size=64]")],
        [whole_step(bench(), 44_000)],
        [timed(row, 0.0) for row in bench()],
    ],
    ids=["none", "one layer", "failed", "skipped", "no cost", "forward", "grid", "only the step", "no time"],
)
@pytest.mark.parametrize("roofs", [ROOFS, None], ids=["roofs", "no roofs"])
def test_odd_runs_have_clear_headlines(rows: list[LayerRun], roofs: None) -> None:
    for it in (*headlines(rows, roofs), *findings(rows, roofs)):
        assert "None" not in it.claim and "nan" not in it.claim and it.claim.strip() == it.claim
    assert len(headlines(rows, roofs)) <= MOST * max(len({(row.impl, row.precision) for row in rows}), 1)
