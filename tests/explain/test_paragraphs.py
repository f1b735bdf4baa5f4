from dataclasses import replace

import pytest
from tests.explain.recorded import H200, recorded, whole

from lamina.explain import headlines, paragraphs

from ..report.records import ROOFS, bench


def test_the_network_comes_first_and_then_its_longest_layers() -> None:
    rows, kernels, counters = recorded()
    found = paragraphs(rows, H200, kernels, counters)
    longest = ["features.0", "classifier.1", "features.3", "features.2", "classifier.4"]
    assert [it.layer for it in found] == [None, *longest, None, None]
    network = found[0].text
    assert network.startswith(f"The step takes 3.22 ms in {len(kernels)} kernels.")
    assert "Bottlenecks by step time: compute" in network
    top = " ".join(it.claim for it in headlines(rows, H200, kernels, counters))
    assert "up to" in top and "channels-last" in top and "shared memory" in top
    assert sum(it.share for it in found[1:7]) == pytest.approx(1.0)
    assert found[-2].text.startswith("The other 2 layers (features.1, classifier.2) take 1.6% of the step")
    assert found[-1].text.startswith("Notes on counters: The L1 hit rate near 0 of features.3 forward")


def test_a_layer_paragraph_has_limiter_stalls_and_recommendations() -> None:
    rows, kernels, counters = recorded()
    by_layer = {it.layer: it.text for it in paragraphs(rows, H200, kernels, counters) if it.layer}
    first = by_layer["features.0"]
    assert first.startswith("features.0 (convolution) takes 1.80 ms, ")
    assert "forward (1.17 ms): shared memory (89 %) for 67% of its kernel time" in first
    assert "Main stall reasons in forward: the fixed latency of the previous instruction (wait, 35%)" in first
    assert "use channels-last to remove layout conversions" in first
    linear = by_layer["classifier.1"]
    assert "Recommendations: enable tensor cores (forward, backward_weight: up to" in linear
    assert "features.1" not in by_layer  # below the share that matters


def test_advice_below_the_roofline_depends_on_the_limiter() -> None:
    rows, kernels, counters = recorded("features.3")
    (_, layer, *_) = paragraphs(rows, H200, kernels, counters)
    assert "only fewer FLOPs, a smaller data type or sparsity help" in layer.text
    (_, by_time, *_) = paragraphs(rows, H200)
    assert "more efficient kernels" in by_time.text or "smaller data type" not in by_time.text


def test_the_list_is_short() -> None:
    found = paragraphs(bench(), ROOFS, limit=2)
    layers = [it for it in found if it.layer]
    assert len(layers) == 2 and layers[0].share >= layers[1].share
    assert "The other 16 layers" in found[3].text and len(found) == 4
    assert all(len(it.text) < 1200 for it in found)


def test_one_layer_however_short() -> None:
    rows, kernels, counters = recorded()
    (only,) = paragraphs(rows, H200, kernels, counters, layer="classifier.2")
    assert only.layer == "classifier.2" and only.share < 0.02
    assert paragraphs(rows, H200, kernels, counters, layer="nothing") == ()


def test_each_setting_has_its_own_paragraphs() -> None:
    both = [*bench(), *bench("bf16")]
    found = paragraphs(both, ROOFS, limit=1)
    assert [it.setting for it in found if it.layer] == ["fp32", "bf16"]
    assert found[0].text.startswith("fp32: The step takes")
    assert found[0].text.count("fp32") == 1


def test_launch_overhead_is_the_first_headline() -> None:
    rows, kernels, counters = recorded()
    busy = sum(it.duration_us for it in kernels)
    found = headlines([*rows, whole(2 * busy, rows)], H200, kernels, counters)
    assert found[0].claim.startswith("the GPU is idle for 50% of the step (launch-bound): its 25 kernels take 3.22 ms")
    assert "the step 6.44 ms" in found[0].claim and "up to 2.0x" in found[0].claim


def test_without_times_there_are_no_paragraphs() -> None:
    assert paragraphs([], H200) == ()
    rows, *_ = recorded("features.1")
    assert paragraphs([replace(rows[0], timing=None, outcome="failed", reason="no memory")], H200) == ()
