import pytest
from tests.explain.recorded import counted, kernel, key, recorded, row, view

from lamina.explain import metrics
from lamina.explain.metrics import stall
from lamina.explain.rules.counters import (
    l2_partitions,
    tensor_core_flops,
    tma_bypasses_l1,
    wgmma_stalls,
)
from lamina.explain.view import View

SM90 = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_warpgroupsize1x1x1"
COUNTS = {metrics.FP_ADDS: 10.0, metrics.FP_MULTIPLIES: 10.0, metrics.FP_FUSED: 10.0}


def one(values: dict[str, float | None], name: str = SM90) -> View:
    made = kernel(key("features.3"), 100.0, name)
    return view([row(key("features.3"), 100.0)], [made], counted(made, values))


def test_a_low_l1_hit_rate_with_tma_is_explained() -> None:
    (found,) = tma_bypasses_l1(view(*recorded()))
    assert found.layer is None and "features.3 forward" in found.claim and "features.1" not in found.claim


@pytest.mark.parametrize(
    ("values", "name", "fires"),
    [
        ({metrics.L1_HIT: 2.0}, SM90, True),
        ({metrics.L1_HIT: 60.0}, SM90, False),
        ({metrics.L1_HIT: None}, SM90, False),
        ({metrics.L1_HIT: 2.0}, "void at::elementwise_kernel<4>(int)", False),
        ({metrics.L1_HIT: 2.0, metrics.TMA_SECTORS: 0.0}, SM90, False),
        ({metrics.L1_HIT: 2.0, metrics.TMA_SECTORS: 9.0}, "void some_kernel(int)", True),
    ],
)
def test_the_tma_counter_overrides_the_name(values: dict[str, float | None], name: str, fires: bool) -> None:
    assert len(list(tma_bypasses_l1(one(values, name)))) == fires


def test_flop_counters_without_tensor_cores_are_flagged() -> None:
    (found,) = tensor_core_flops(view(*recorded()))
    assert "features.0 forward" in found.claim and "features.3 forward" in found.claim
    assert "classifier" not in found.claim
    flops = row(key("features.3"), 1.0).flops
    assert flops
    assert list(tensor_core_flops(one(COUNTS | {metrics.TENSOR: 80.0})))
    assert not list(tensor_core_flops(one(COUNTS | {metrics.TENSOR: 1.0})))
    assert not list(tensor_core_flops(one({metrics.TENSOR: 80.0})))
    full = COUNTS | {metrics.FP_FUSED: flops / 2, metrics.TENSOR: 80.0}
    assert not list(tensor_core_flops(one(full)))


@pytest.mark.parametrize(("gmma", "fires"), [(40.0, True), (2.0, False)])
def test_wgmma_stalls_are_explained(gmma: float, fires: bool) -> None:
    values = {stall("selected"): 20.0, stall("gmma"): gmma, stall("wait"): 80.0 - gmma}
    assert len(list(wgmma_stalls(one(values)))) == fires
    assert list(wgmma_stalls(one({}))) == []


def test_impossible_hit_rates_are_flagged() -> None:
    (found,) = l2_partitions(view(*recorded()))
    assert found.evidence["highest hit rate"] == pytest.approx(195.75)
    assert "features.3 forward" in found.claim
    assert list(l2_partitions(one({metrics.L2_HIT: 99.0, metrics.L2_FABRIC: 5.0})))
    assert list(l2_partitions(one({metrics.L2_HIT: 99.0, metrics.L2_FABRIC: 0.0}))) == []
    assert list(l2_partitions(one({metrics.L2_HIT: 99.0}))) == []
