from tests.explain.recorded import H200, kernel, key, row

from lamina.explain import findings
from lamina.record import Finding, KernelRun, LayerRun

LAYOUT = "void cudnn::nchwToNhwcKernel<float>(int)"


def two(small: list[str], large: list[str], rest: float = 0.0) -> list[Finding]:
    rows: list[LayerRun] = []
    kernels: list[KernelRun] = []
    for batch, names in ((16, small), (128, large)):
        of, other = key("features.3", batch=batch), key("features.1", batch=batch)
        kernels += [kernel(of, 10.0, name, place) for place, name in enumerate(names)]
        kernels.append(kernel(other, 10.0 + rest, "void at::elementwise_kernel<4>(int)"))
        rows += [row(of, 10.0 * len(names)), row(other, 10.0 + rest)]
    return [it for it in findings(rows, H200, kernels) if it.rule == "algorithm changes"]


def test_another_matrix_kernel_at_another_batch_is_found() -> None:
    (found,) = two(["sm90_xmma_gemm_a"], ["sm90_xmma_gemm_b"])
    assert "features.3 forward" in found.claim and "features.1" not in found.claim
    assert found.evidence == {"features.3 forward, batch 16 to 128": "sm90_xmma_gemm_a to sm90_xmma_gemm_b"}


def test_auxiliary_kernels_are_ignored() -> None:
    assert two(["sm90_xmma_gemm_a"], [LAYOUT, "sm90_xmma_gemm_a", LAYOUT]) == []


def test_insignificant_phases_are_ignored() -> None:
    assert two(["sm90_xmma_gemm_a"], ["sm90_xmma_gemm_b"], rest=10_000.0) == []
