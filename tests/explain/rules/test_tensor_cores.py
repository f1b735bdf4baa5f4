from dataclasses import replace

import pytest
from tests.explain.recorded import H200, counted, kernel, key, names, recorded, row, view

from lamina.explain import metrics
from lamina.explain.rules.tensor_cores import tensor_cores_idle
from lamina.record import LayerRun, Roofs

SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(int)"


def test_only_matrix_layers_without_tensor_cores_are_reported() -> None:
    found = list(tensor_cores_idle(view(*recorded())))
    assert set(names(found)) == {
        ("classifier.1", "forward"),
        ("classifier.1", "backward_weight"),
        ("classifier.4", "forward"),
    }
    assert all("does not use tensor cores in fp32" in it.claim and it.confidence > 0.9 for it in found)


def test_the_gain_is_that_of_the_roofline() -> None:
    rows, kernels, counters = recorded("classifier.1")
    (found,) = (it for it in tensor_cores_idle(view(rows, kernels, counters)) if it.phase == "forward")
    flops, moved = 2 * 128 * 9216 * 4096, 4 * (128 * 9216 + 128 * 4096 + 9216 * 4096)
    fp32 = max(flops / 50e3, moved / 4e3)
    assert found.evidence["gain in tf32"] == pytest.approx(1 - max(flops / 400e3, moved / 4e3) / fp32)
    assert found.evidence["gain in bf16"] == pytest.approx(1 - max(flops / 800e3, moved / 8e3) / fp32)


def linear(
    precision: str, features: int, used: float | None, name: str = SIMT, roofs: Roofs | None = H200
) -> list[str]:
    of = key("classifier.1", precision=precision)
    made: LayerRun = replace(row(of, 300.0), output=(128, features))
    one = kernel(of, 300.0, name)
    counters = counted(one, {metrics.TENSOR: used})
    return [it.claim for it in tensor_cores_idle(view([made], [one], counters, roofs))]


def test_a_misaligned_size_is_named() -> None:
    (claim,) = linear("bf16", 1001, 0.0)
    assert "sizes 1001 are not multiples of 8" in claim
    (claim,) = linear("tf32", 4096, 0.0)
    assert "its sizes are aligned" in claim


@pytest.mark.parametrize(("precision", "used"), [("bf16", 40.0), ("fp32", 40.0), ("fp64", 0.0)])
def test_busy_tensor_cores_and_fp64_are_not_reported(precision: str, used: float) -> None:
    assert linear(precision, 4096, used) == []


def test_without_counters_the_name_decides_with_less_confidence() -> None:
    assert len(linear("fp32", 4096, None)) == 1
    assert linear("fp32", 4096, None, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn") == []
    assert linear("fp32", 4096, None, "void at::elementwise_kernel<4>(int)") == []


def test_without_roofs_the_speedup_is_unknown() -> None:
    (claim,) = linear("fp32", 4096, 0.0, roofs=None)
    assert claim.endswith("; tf32 and bf16 do")


def test_a_small_matrix_kernel_beside_others_is_not_reported() -> None:
    of = key("classifier.1")
    kernels = [kernel(of, 40.0, SIMT), kernel(of, 60.0, "void at::elementwise_kernel<4>(int)", 1)]
    assert list(tensor_cores_idle(view([row(of, 100.0)], kernels, counted(kernels[0], {metrics.TENSOR: 0.0})))) == []
    longer = [kernel(of, 60.0, SIMT), kernel(of, 40.0, "void at::elementwise_kernel<4>(int)", 1)]
    assert len(list(tensor_cores_idle(view([row(of, 100.0)], longer, counted(longer[0], {metrics.TENSOR: 0.0}))))) == 1
