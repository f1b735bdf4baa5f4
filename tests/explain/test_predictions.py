"""Predictions against planted kernels whose answer is plain arithmetic, and on what an H200 counted."""

from dataclasses import replace

import pytest
from tests.explain.recorded import H200, counted, kernel, key, recorded, row, whole

from lamina.explain import metrics
from lamina.explain.predictions import (
    predict_algorithm,
    predict_channels_last,
    predict_cuda_graph,
    predict_fusion,
    predict_l1_bypass,
    predict_precision,
    predict_without_activations,
)
from lamina.record import KernelRun, LayerRun

GEMM = "sm90_xmma_fprop_implicit_gemm_f32f32"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::CUDAFunctor_add>(int)"
LAYOUT = "void cudnn::nchwToNhwcKernel<float>(int)"
CONV, RELU, FC = key("features.3"), key("features.1"), key("classifier.1")


def layer() -> tuple[list[LayerRun], list[KernelRun]]:
    """A convolution of 100 us, a quarter of it conversions and a tenth its bias, and an activation of 20 us."""
    kernels = [
        kernel(CONV, 65.0, GEMM),
        kernel(CONV, 25.0, LAYOUT, 1),
        kernel(CONV, 10.0, ADD, 2),
        kernel(RELU, 20.0, ADD),
    ]
    return [row(CONV, 100.0), row(RELU, 20.0)], kernels


def test_fusion_leaves_the_matrix_kernels() -> None:
    rows, kernels = layer()
    assert predict_fusion(rows, kernels, [], H200).us == pytest.approx(90.0)
    slower = [replace(it, timing=replace(it.timing, median_us=2 * it.timing.median_us)) for it in rows if it.timing]
    assert predict_fusion(slower, kernels, [], H200).us == pytest.approx(180.0)  # parts of the time, not kernels' times


def test_fusion_backward_still_reads_the_saved_output() -> None:
    back = row(RELU._replace(phase="backward_data"), 100.0)
    assert back.bytes
    left = predict_fusion([back], [], [], H200).us
    assert left == pytest.approx(back.bytes / 3 / 4000e3)
    assert predict_fusion([replace(back, timing=None, outcome="failed")], [], [], H200).us is None


def test_fusion_removes_the_bias_sum_and_brings_pooling_to_the_copy_bandwidth() -> None:
    back = CONV._replace(phase="backward_weight")
    sums = [kernel(back, 60.0, GEMM), kernel(back, 40.0, "void at::native::reduce_kernel<512, 1>(int)", 1)]
    assert predict_fusion([row(back, 100.0)], sums, [], H200).us == pytest.approx(60.0)
    split = [kernel(back, 60.0, GEMM), kernel(back, 40.0, "cutlass::ReduceSplitK", 1)]
    assert predict_fusion([row(back, 100.0)], split, [], H200).us == pytest.approx(100.0)
    pool = replace(row(RELU, 900.0), kind="pooling", bytes=400_000_000)
    assert predict_fusion([pool], [], [], H200).us == pytest.approx(400e6 / (H200.copy_gbs * 1e3))
    assert predict_fusion([pool], [], [], None).us == 900.0


def test_without_activations_their_gaps_are_removed() -> None:
    rows, kernels = layer()
    step = whole(160.0, rows)
    found = predict_without_activations([*rows, step], kernels, [], H200)
    assert found.us == pytest.approx(160.0 - 20.0 - 40.0 / 4)  # one of four launches
    assert predict_without_activations(rows, kernels, [], H200).us == pytest.approx(100.0)


def test_channels_last_removes_conversions() -> None:
    rows, kernels = layer()
    assert predict_channels_last(rows, kernels, [], H200).us == pytest.approx(95.0)
    assert predict_channels_last([*rows, whole(150.0, rows)], kernels, [], H200).us == pytest.approx(125.0)
    none = predict_channels_last(rows, [], [], H200)
    assert none.us is None and "kernels" in none.rule and "profile" in none.rule


def test_a_cpu_has_no_kernels_and_no_counters_to_profile() -> None:
    rows = [replace(it, timing=replace(it.timing, clock="cpu", l2="-")) for it in layer()[0] if it.timing]
    for predict in (predict_channels_last, predict_cuda_graph, predict_l1_bypass):
        found = predict(rows, [], [], None)
        assert found.us is None and "a CPU have none" in found.rule and "profile" not in found.rule


def test_precision_follows_operations_and_bytes() -> None:
    fc = row(FC, 300.0)
    kernels = [kernel(FC, 200.0, GEMM), kernel(FC, 100.0, ADD, 1)]
    flops, moved = 2 * 128 * 9216 * 4096, 4 * (128 * 9216 + 128 * 4096 + 9216 * 4096)
    fp32, bf16 = flops / 50e6 + moved / 4e6, flops / 800e6 + moved / 2 / 4e6
    assert predict_precision([fc], kernels, [], H200, "bf16").us == pytest.approx(200 * bf16 / fp32 + 100 / 2)
    assert predict_precision([fc], [], [], H200, "bf16").us == pytest.approx(300 * bf16 / fp32)


def test_precision_does_not_scale_kernels_limited_by_instructions() -> None:
    kernels = [kernel(FC, 200.0, GEMM), kernel(FC, 100.0, ADD, 1)]
    issue = counted(kernels[1], {metrics.DRAM: 30.0, metrics.ISSUE: 85.0})
    memory = counted(kernels[1], {metrics.DRAM: 85.0, metrics.ISSUE: 30.0})
    held, free = (predict_precision([row(FC, 300.0)], kernels, it, H200, "bf16").us for it in (issue, memory))
    assert held and free and held - free == pytest.approx(50.0)


def test_a_lower_roofline_slows_only_kernels_above_it() -> None:
    conv = row(CONV, 5000.0)
    assert predict_precision([conv], [kernel(CONV, 5000.0, GEMM)], [], H200, "fp32").us == pytest.approx(5000.0)
    assert conv.flops
    near = row(CONV, conv.flops / 400e6)
    assert conv.bytes
    slowed = conv.flops / 50e6 + conv.bytes / 4e6
    assert predict_precision([near], [kernel(CONV, 1.0, GEMM)], [], H200, "fp32").us == pytest.approx(slowed)


def test_no_kernel_gets_shorter_than_a_launch() -> None:
    kernels = [kernel(RELU, 2.5, ADD), kernel(RELU, 1.5, ADD, 1)]
    assert predict_precision([row(RELU, 4.0)], kernels, [], H200, "bf16").us == pytest.approx(2.0 + 1.5)


@pytest.mark.parametrize("changes", [{"roofs": None}, {"precision": "fp8"}, {"precision": "fp64"}])
def test_precision_without_its_peak_is_not_predicted(changes: dict[str, str | None]) -> None:
    asked = {"roofs": H200, "precision": "bf16"} | changes
    found = predict_precision([row(FC, 300.0)], [], [], asked["roofs"], str(asked["precision"]))  # type: ignore[arg-type]
    assert found.us is None and found.rule


def test_a_graph_leaves_the_kernels() -> None:
    rows, kernels = layer()
    tiny = kernel(RELU, 1.5, ADD, 1)
    found = predict_cuda_graph([*rows, whole(500.0, rows)], [*kernels, tiny], [], H200)
    assert found.us == pytest.approx(121.5)
    assert predict_cuda_graph([*rows, whole(121.0, rows)], [*kernels, tiny], [], H200).us == 121.0
    assert predict_cuda_graph([*rows, whole(500.0, rows)], [], [], H200).us is None


@pytest.mark.parametrize(
    ("hit", "load", "expected"), [(0.0, 50.0, 1.0), (80.0, 10.0, 1.0), (50.0, 80.0, 1.6), (80.0, 40.0, 2.0)]
)
def test_bypassing_l1_costs_once_l2_is_saturated(hit: float, load: float, expected: float) -> None:
    one = kernel(CONV, 100.0)
    values = {metrics.L1_HIT: hit, metrics.L2: load, metrics.L2_READS: 10.0, metrics.L2_WRITES: 0.0}
    found = predict_l1_bypass([row(CONV, 100.0)], [one], counted(one, values), H200)
    assert found.us == pytest.approx(100.0 * expected)
    half = counted(one, values | {metrics.L2_WRITES: 10.0})  # half of what L2 serves are writes, which stay
    kept = max(1.0, load * (0.5 + 0.5 / (1 - hit / 100)) / 100)
    assert predict_l1_bypass([row(CONV, 100.0)], [one], half, H200).us == pytest.approx(100.0 * kept)
    written = counted(one, values | {metrics.L2_READS: 0.001, metrics.L2_WRITES: 10.0})
    assert predict_l1_bypass([row(CONV, 100.0)], [one], written, H200).us == pytest.approx(100.0, rel=0.01)


def test_bypassing_is_not_predicted_without_counters() -> None:
    found = predict_l1_bypass([row(CONV, 100.0)], [kernel(CONV, 100.0)], [], H200)
    assert found.us is None and "counters" in found.rule


def conv(us: float, share_of_roof: float = 0.5) -> LayerRun:
    made = row(CONV, us)
    assert made.flops
    return replace(made, timing=None) if not us else row(CONV, made.flops / 400e6 / share_of_roof)


def test_the_best_algorithm_reaches_the_roofline_fraction_of_its_peers() -> None:
    bad, peers = conv(1, 0.1), [conv(1, 0.4), conv(1, 0.5), conv(1, 0.6)]
    assert bad.flops and bad.timing
    assert predict_algorithm([bad], [], [], H200, "", peers).us == pytest.approx(bad.flops / 400e6 / 0.5)
    good = conv(1, 0.7)
    assert good.timing
    assert predict_algorithm([good], [], [], H200, "direct", peers).us == good.timing.median_us


def test_algorithms_that_do_not_fit_are_not_predicted() -> None:
    assert predict_algorithm([conv(1)], [], [], H200, "winograd").us is None  # 5x5
    assert predict_algorithm([row(FC, 300.0)], [], [], H200, "gemm").us is None
    assert predict_algorithm([conv(1)], [], [], None, "gemm").us is None


def test_skipped_phases_take_no_time_and_failed_ones_no_prediction() -> None:
    rows, kernels = layer()
    absent = replace(row(key("features.0", "backward_data"), 1.0), timing=None, outcome="skipped")
    assert predict_channels_last([*rows, absent], kernels, [], H200).us == pytest.approx(95.0)
    assert predict_channels_last([*rows, replace(absent, outcome="failed")], kernels, [], H200).us is None


def test_predictions_from_h200_counters() -> None:
    rows, kernels, counters = recorded("features.0")
    time = sum(it.timing.median_us for it in rows if it.timing)
    converted = predict_channels_last(rows, kernels, counters, H200)
    spent = sum(it.duration_us for it in kernels if "nchwToNhwc" in it.name or "nhwcToNchw" in it.name)
    assert converted.us == pytest.approx(time - spent)
    bypassed = predict_l1_bypass(rows, kernels, counters, H200)
    assert bypassed.us == pytest.approx(time) and "L1 hit rate 4" in bypassed.rule
