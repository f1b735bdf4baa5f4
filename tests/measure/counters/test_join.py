"""Two runs whose kernels agree or differ, built by hand; names as CUPTI and ncu spell them."""

from dataclasses import replace

import pytest

from lamina.measure.counters import Profiled, join
from lamina.measure.counters.join import base_name, difference
from lamina.record import Counter, KernelRun, Key

CONV = Key("conv", "forward", "dense", "tf32", "nchw", 8)
RELU = CONV._replace(layer="relu")
RANGES = {"lamina/0/forward": CONV, "lamina/1/forward": RELU}
TIME = "gpu__time_duration.sum"


def timed(key: Key, invocation: int, name: str, blocks: int | None = 1) -> KernelRun:
    size = None if blocks is None else (blocks, 1, 1)
    return KernelRun(key, invocation, name, size, size and (32, 1, 1), 16, 0, 1.0)


def counted(range_: str | None, name: str, blocks: int = 1, time: float | None = 5.0) -> Profiled:
    return Profiled(range_, name, (blocks, 1, 1), (32, 1, 1), {TIME: (time, "ns")})


TIMED = [
    timed(CONV, 0, "Memset", None),
    timed(CONV, 1, "void a::native::k<1>(int)", 4),
    timed(CONV, 2, "l"),
    timed(RELU, 0, "m"),
]
COUNTED = [
    counted(None, "noise"), counted("lamina/1/forward", "m", time=None),
    counted("lamina/0/forward", "void a::k<1, 2>(T1)", 4), counted("lamina/0/forward", "l"),
]  # fmt: skip


def test_counters_belong_to_kernels_and_not_to_copies():
    counters, mismatches = join(TIMED, COUNTED, RANGES)
    assert mismatches == ()
    assert counters == (
        Counter(CONV, 1, TIME, 5.0, "ns"), Counter(CONV, 2, TIME, 5.0, "ns"), Counter(RELU, 0, TIME, None, "ns")
    )  # fmt: skip


def test_the_order_of_rows_does_not_matter():
    assert join(list(reversed(TIMED)), COUNTED, RANGES)[0] == join(TIMED, COUNTED, RANGES)[0]


def test_different_kernels_that_run_in_either_order_keep_their_counters():
    there = [
        counted("lamina/0/forward", "l", time=1.0),
        counted("lamina/0/forward", "k", 4, time=2.0),
        counted("lamina/0/forward", "l", time=3.0),
    ]
    here = [*TIMED[:3], timed(CONV, 3, "l")]
    counters, mismatches = join(here, there, {"lamina/0/forward": CONV})
    assert mismatches == ()
    # Invocation 1 is k; 2 and 3 are l, the first and the second.
    assert {one.invocation: one.value for one in counters} == {1: 2.0, 2: 1.0, 3: 3.0}


def test_as_many_kernels_of_the_same_names_are_not_the_same_kernels():
    there = [counted("lamina/0/forward", "k", 4), counted("lamina/0/forward", "k", 4)]
    counters, (mismatch,) = join(TIMED, there, {"lamina/0/forward": CONV})
    assert counters == () and mismatch.key == CONV and "kernel 1 differs" in mismatch.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda kernels: kernels[:-1],
            "kernel 1 differs: timed run k 4x1x1 of 32x1x1, l 1x1x1 of 32x1x1; counter run k",
        ),
        (lambda kernels: [*kernels, counted("lamina/0/forward", "more")], "kernel 2 differs"),
        (lambda kernels: [*kernels[:-1], counted("lamina/0/forward", "other")], "counter run k 4x1x1 of 32x1x1, other"),
        (lambda kernels: [*kernels[:-1], counted("lamina/0/forward", "l", 2)], "l 2x1x1 of 32x1x1"),
        (lambda kernels: [*kernels[:-1], replace(kernels[-1], block=(64, 1, 1))], "l 1x1x1 of 64x1x1"),
        (lambda kernels: kernels[:2], "counter run none"),
    ],
)
def test_only_rows_that_differ_are_rejected_with_the_difference(change, words):
    counters, (mismatch,) = join(TIMED, change(COUNTED), RANGES)
    assert {one.key for one in counters} == {RELU}
    assert (mismatch.range, mismatch.key) == ("lamina/0/forward", CONV)
    assert words in mismatch.reason


def test_a_range_without_a_row_is_reported():
    counters, (mismatch,) = join(TIMED, [*COUNTED, counted("lamina/7/forward", "x")], RANGES)
    assert len(counters) == 3
    assert mismatch.key is None and mismatch.range == "lamina/7/forward"


def test_long_lists_are_truncated():
    many = [timed(CONV, i, "k") for i in range(30)]
    assert "22 more" in difference(many, [])
    assert difference([], []) == ""


@pytest.mark.parametrize(
    ("cupti", "ncu"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
            "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
            "void at::vectorized_elementwise_kernel<4, at::FillFunctor<float>, std::array<char *, 1>>(int, T2, T3)",
        ),
        (
            "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float const*, long)",
            "void at::<unnamed>::max_pool_forward_nchw<float, int>(T2, const T1 *, long)",
        ),
        (
            "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true, "
            "(cudnnKernelDataType_t)2>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, float const*, float*)",
            "void cudnn::nchwToNhwcKernel<float, float, float, 0, 1, 2>(cudnn::nchw2nhwc_params_t<T3>, const T1 *)",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add"
            "<float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}>(int, X)",
            "void at::elementwise_kernel<128, 2, void at::gpu_kernel_impl_nocast<at::CUDAFunctor_add<float>>"
            "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
        ),
        ("void cutlass::Kernel2<cutlass_80_sgemm>(cutlass_80_sgemm::Params)", "void cutlass::Kernel2<x>(T1::Params)"),
        ("sm80_xmma_gemm_f32f32_nn_n__5x_cublas", "sm80_xmma_gemm_f32f32_nn_n__5x_cublas"),
        ("triton_poi_fused_relu_0", "triton_poi_fused_relu_0"),
    ],
)  # fmt: skip
def test_both_spellings_have_one_base_name(cupti, ncu):
    assert base_name(cupti) == base_name(ncu)
    assert base_name(ncu).isidentifier()


@pytest.mark.parametrize("name", ["", "<", "(", "::", " "])
def test_unusual_names_are_unchanged(name):
    assert base_name(name) == name
