"""The recorded profiles: complete, and all that is said of a run can be said of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina import pipeline
from lamina.errors import UsageError
from lamina.pipeline.explain import compare_counters, compare_kernels, compare_layers, explain, look_up
from lamina.pipeline.imports import import_file
from lamina.recipes import recordings
from lamina.store import Store, open_store

BACKWARD = {"convolution", "linear"}


@pytest.fixture(scope="module", params=recordings.names())
def recorded(request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_store(":memory:") as store:
        import_file(recordings.path(request.param), store)
        yield store


def test_every_layer_phase_and_kernel_is_there(recorded: Store) -> None:
    this = recorded.run("latest")
    rows, kernels, counters = recorded.layers(this.id), recorded.kernels(this.id), recorded.counters(this.id)
    assert this.status == "done" and "H200" in this.environment["device"]
    assert all(coverage.share >= 0.99 and not coverage.strays for coverage in recorded.coverages(this.id))
    batches = {row.batch for row in rows}
    assert len(batches) >= 2
    for batch in batches:
        mine = [row for row in rows if row.batch == batch]
        owners = {kernel.key for kernel in kernels if kernel.key.batch == batch}
        assert {row.key for row in mine if row.timing and row.timing.kernels and row.phase != "step"} == owners
        assert {counter.key for counter in counters if counter.key.batch == batch} <= owners
        # All but the first layer, whose input is the data, have three phases of their own.
        trained = [row for row in mine if row.kind in BACKWARD and row.timing]
        phases = {layer: {row.phase for row in trained if row.layer == layer} for layer in {r.layer for r in trained}}
        assert sum(found != {"forward", "backward_data", "backward_weight"} for found in phases.values()) <= 1
    launches = [(kernel.key, kernel.invocation) for kernel in kernels]
    assert len(launches) == len({*launches})


def test_it_is_explained(recorded: Store) -> None:
    found = explain(recorded, "latest")
    rules = {finding.rule for finding in found.findings}
    convolutional = any(row.kind == "convolution" for row in recorded.layers(found.run.id))
    stalls_counted = any("issue_stalled" in counter.metric for counter in recorded.counters(found.run.id))
    assert "bottlenecks" in rules and ("layout conversions" in rules) == convolutional
    assert ("warp stalls" in rules) == stalls_counted
    whole = found.paragraphs[0].text
    assert whole.startswith("batch ") and "Bottlenecks by step time" in whole
    assert all("up to" in it.claim or "take" in it.claim or "cost" in it.claim for it in found.headlines)
    assert {it.evidence["setting"] for it in found.headlines} == {it.setting for it in found.paragraphs}


def test_two_batch_sizes_are_compared(recorded: Store) -> None:
    small, *_, large = sorted({row.batch for row in recorded.layers(recorded.run("latest").id)})
    a, b = look_up(recorded, "latest", small), look_up(recorded, "latest", large)
    pairs = [pair for pair in compare_layers(a, b) if pair.speedup is not None and pair.phase != "step"]
    assert pairs and sum(pair.verdict == "slower" for pair in pairs) > len(pairs) / 2
    assert any(pair.change == "same" for pair in compare_kernels(a, b))
    (read,) = compare_counters(a, b, pairs[0].layer, ["gpu__time_duration.sum"], per_item=False)[:1]
    assert read.a is not None and read.b is not None and read.b > read.a > 0


def test_it_is_reported(recorded: Store, tmp_path: Path) -> None:
    page = pipeline.report(recorded, "latest", tmp_path / "report.html").read_text()
    assert recorded.run("latest").target in page


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'alexnet_nvidia-h200'"):
        recordings.path("alexnet_nvidia-h100")
