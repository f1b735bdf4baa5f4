"""The recorded profiles: complete, and all that is said of a run can be said of them."""

import re
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


NETWORKS = [name for name in recordings.names() if not name.startswith("dnnmark-primitives")]
"""Those with a whole step, at several batch sizes."""


@pytest.fixture(scope="module", params=NETWORKS)
def recorded(request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_store(":memory:") as store:
        import_file(recordings.path(request.param), store)
        yield store


def test_every_layer_phase_and_kernel_is_there(recorded: Store) -> None:
    this = recorded.run("latest")
    rows, kernels, counters = recorded.layers(this.id), recorded.kernels(this.id), recorded.counters(this.id)
    assert this.status == "done" and re.search(r"NVIDIA H\d00", this.environment["device"])
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
    layers = recorded.layers(found.run.id)
    # In fp32 the library's convolutions read NCHW.
    convolutional = any(row.kind == "convolution" and row.precision == "tf32" for row in layers)
    stalls_counted = any("issue_stalled" in counter.metric for counter in recorded.counters(found.run.id))
    assert "bottlenecks" in rules and ("layout conversions" in rules) == convolutional
    assert ("warp stalls" in rules) == stalls_counted
    whole = found.paragraphs[0].text
    assert whole.startswith("batch ") and any("Bottlenecks by step time" in it.text for it in found.paragraphs)
    words = ("up to", "take", "cost", "unreliable")
    assert all(any(word in it.claim for word in words) for it in found.headlines)
    assert {it.evidence["setting"] for it in found.headlines} == {it.setting for it in found.paragraphs}


def test_two_batch_sizes_are_compared(recorded: Store) -> None:
    small, *_, large = sorted({row.batch for row in recorded.layers(recorded.run("latest").id)})
    a, b = look_up(recorded, "latest", small), look_up(recorded, "latest", large)
    pairs = [pair for pair in compare_layers(a, b) if pair.speedup is not None and pair.phase != "step"]
    assert pairs and sum(pair.verdict == "slower" for pair in pairs) > len(pairs) / 2
    assert any(pair.change == "same" for pair in compare_kernels(a, b))
    (read,) = compare_counters(a, b, pairs[0].layer, ["gpu__time_duration.sum"], per_item=False)[:1]
    assert read.b is not None and (read.a is None if recorded_once(recorded) else read.b > (read.a or 0.0) > 0)


def recorded_once(store: Store) -> bool:
    """Whether counters were read at one batch size."""
    return len({one.key.batch for one in store.counters(store.run("latest").id)}) == 1


def test_it_is_reported(recorded: Store, tmp_path: Path) -> None:
    page = pipeline.report(recorded, "latest", tmp_path / "report.html").read_text()
    assert recorded.run("latest").target in page


@pytest.mark.parametrize("name", [name for name in recordings.names() if name.startswith("dnnmark-")])
def test_the_papers_networks_are_in_fp32_with_counters(name: str) -> None:
    with open_store(":memory:") as store:
        this = import_file(recordings.path(name), store)
        rows, counters = store.layers(this), store.counters(this)
    assert {row.precision for row in rows} == {"fp32"} and len({one.key.batch for one in counters}) == 1
    assert any(row.kind == "local_response_norm" for row in rows)


def test_the_recordings_of_a_network_are_found_by_device() -> None:
    assert [path.name for path in recordings.of("alexnet")] == ["alexnet_nvidia-h200.json.xz"]
    assert "dnnmark-alexnet-227_nvidia-h200.json.xz" in [path.name for path in recordings.of("dnnmark-alexnet-227")]
    assert recordings.of("lenet5") == ()


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'alexnet_nvidia-h200'"):
        recordings.path("alexnet_nvidia-h100")
