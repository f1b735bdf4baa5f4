import pytest
from tests.explain.recorded import counted, document, kernel, key, recorded

from lamina.explain.launches import Launches, kind, mean, total, total_us

METRIC = "sm__some.avg"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void cudnn::nchwToNhwcKernel<float, float, float, false>(cudnn::Params)", "layout"),
        ("void cudnn::ops::nhwcToNchwKernel<float>(int)", "layout"),
        ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32", "matrix"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(T1::Params)", "matrix"),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "matrix"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(Params)", "reduction"),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<CUDAFunctor_add>>(int)",
            "elementwise",
        ),
        ("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)", "copy"),
        (
            "void cutlass__5x_cudnn::Kernel<conv::ImplicitGemmConvolution<conv::Multistage<gemm::GemmShape<128, 128>, "
            "transform::TransposePitchLinear, reduction::thread::Reduce>>>(T1::Params)",
            "matrix",
        ),
        ("void cutlass__5x_cudnn::Kernel<reduction::ReduceSplitK<MatrixShape<4, 128>>>(T1::Params)", "reduction"),
        ("void cask_plugin__5x_cudnn::init_device_workspace_kernel<fprop::Warp_specialized>(T1)", "other"),
        ("void scal_kernel<float, float, 1>(cublasTransposeParams<T2>, const T1 *)", "other"),
        ("void at::native::max_pool_forward_nchw<float>(int)", "other"),
    ],
)
def test_kernel_kind_by_name(name: str, expected: str) -> None:
    assert kind(kernel(key("features.0"), 1.0, name)) == expected


def test_an_activity_without_a_grid_is_a_copy() -> None:
    assert kind(kernel(key("features.0"), 1.0, "Memcpy DtoD", grid=None, block=None)) == "copy"


def test_launches_are_in_order_and_absent_rows_have_none() -> None:
    late, early = kernel(key("a"), 1.0, "late", 1), kernel(key("a"), 2.0, "early", 0)
    launches = Launches([late, early])
    assert [one.kernel.name for one in launches[key("a")]] == ["early", "late"]
    assert launches[key("b")] == () and key("b") not in launches and list(launches) == [key("a")]


def test_a_mean_is_weighted_by_time_and_a_total_is_not() -> None:
    pair = [kernel(key("a"), 30.0, invocation=0), kernel(key("a"), 10.0, invocation=1)]
    launches = Launches(pair, [*counted(pair[0], {METRIC: 10.0}), *counted(pair[1], {METRIC: 50.0})])[key("a")]
    assert mean(launches, METRIC) == pytest.approx((30 * 10 + 10 * 50) / 40)
    assert total(launches, METRIC) == 60
    assert total_us(launches) == 40


def test_a_counter_with_low_coverage_is_not_used() -> None:
    pair = [kernel(key("a"), 30.0, invocation=0), kernel(key("a"), 10.0, invocation=1)]
    launches = Launches(pair, [*counted(pair[0], {METRIC: 10.0}), *counted(pair[1], {METRIC: None})])[key("a")]
    assert mean(launches, METRIC) is None and total(launches, METRIC) is None
    tiny = [pair[0], kernel(key("a"), 1.0, invocation=1)]
    assert mean(Launches(tiny, counted(pair[0], {METRIC: 10.0}))[key("a")], METRIC) == 10


def test_the_recorded_time_is_all_there() -> None:
    _, kernels, counters = recorded()
    launches = Launches(kernels, counters)
    assert sum(total_us(launches[of]) for of in launches) == pytest.approx(
        sum(one["us"] for one in document()["kernels"])
    )
