import pytest

from lamina.explain.wording import kernel_name, megabytes, ms, name, percent, phases, us

from ..report.records import bench


def test_a_row_is_its_layer_and_phase() -> None:
    assert name(bench()[0]) == "conv1 forward"


def test_formatting() -> None:
    assert [percent(part) for part in (0.034, 0.34, 1.2)] == ["3.4%", "34%", "120%"]
    assert ms(1_234_567) == "1,234.57 ms"
    assert (phases([bench()[0]]), phases(bench()[:3])) == ("1 phase is", "3 phases are")
    assert [us(time) for time in (3.14159, 141.2, 2345.0)] == ["3.1 us", "141 us", "2.35 ms"]
    assert [megabytes(count) for count in (123_456_789, 4_300_000_000)] == ["123 MB", "4.3 GB"]


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("void cudnn::nchwToNhwcKernel<float, float, float>(cudnn::Params<float>, float const*)", "nchwToNhwcKernel"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int)", "max_pool_forward_nchw"),
        ("void at::<unnamed>::max_pool_forward_nchw<float, int>(T2, const T1 *)", "max_pool_forward_nchw"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(T1::Params)",
         "cutlass_80_simt_sgemm_256x128_8x4_tn_align1"),
        ("triton_poi_fused_relu_0", "triton_poi_fused_relu_0"),
        ("sm90_" + 70 * "x", "sm90_" + 54 * "x" + "…"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
    ],
)  # fmt: skip
def test_short_kernel_names(full: str, short: str) -> None:
    assert kernel_name(full) == short
