from dataclasses import replace

import pytest
from tests.explain.recorded import H200, key, row

from lamina.explain.algorithms import convolution_us
from lamina.record import LayerRun, Roofs


def conv(kernel: int = 3, channels: int = 256, filters: int = 384, size: int = 14, precision: str = "tf32") -> LayerRun:
    made = row(key("features.3", precision=precision), 100.0)
    n = 32
    return replace(
        made,
        inputs=((n, channels, size, size),),
        output=(n, filters, size, size),
        flops=2 * n * filters * size * size * channels * kernel * kernel,
    )


FREE = replace(H200, copy_gbs=1e12)  # nothing but arithmetic counts
NO_MATH: Roofs = replace(H200, gemm_gflops=dict.fromkeys(H200.gemm_gflops, 1e15))


def test_winograd_saves_as_in_the_paper() -> None:
    direct, size = convolution_us(conv(), FREE, "gemm"), 16  # four tiles of four outputs cover 14
    f4 = convolution_us(conv(size=size), FREE, "winograd")
    assert direct and f4
    full = convolution_us(conv(size=size), FREE, "gemm")
    assert full and full / f4 == pytest.approx(4.0)  # F(4x4, 3x3)
    small, by_gemm = convolution_us(conv(size=6), FREE, "winograd"), convolution_us(conv(size=6), FREE, "gemm")
    assert small and by_gemm and by_gemm / small == pytest.approx(2.25)  # F(2x2, 3x3)


def test_gemm_writes_and_reads_each_tap() -> None:
    found = convolution_us(conv(), NO_MATH, "gemm")
    images, outputs, weights, columns = 32 * 256 * 196, 32 * 384 * 196, 384 * 256 * 9, 32 * 256 * 9 * 196
    assert found == pytest.approx(4 * (images + columns + columns + weights + outputs) / 4000e3)


def test_the_product_of_spectra_does_not_grow_with_the_kernel() -> None:
    small, large = (convolution_us(conv(kernel=k, size=28), FREE, "fft") for k in (3, 7))
    grid = {k: (28 + k - 1) * ((28 + k - 1) // 2 + 1) for k in (3, 7)}
    assert small and large and large / small == pytest.approx(grid[7] / grid[3])
    assert small == pytest.approx(8 * grid[3] * 32 * 256 * 384 / 400e6)


def test_products_reach_the_given_fraction_of_the_peak() -> None:
    at_roof, half = (convolution_us(conv(), FREE, "gemm", reached) for reached in (1.0, 0.5))
    assert at_roof and half == pytest.approx(2 * at_roof)
    assert convolution_us(conv(), NO_MATH, "gemm", 0.5) == convolution_us(conv(), NO_MATH, "gemm")


def test_half_precision_transforms_in_fp32() -> None:
    assert convolution_us(conv(precision="bf16"), H200, "fft") == convolution_us(conv(precision="fp32"), H200, "fft")


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        (conv(kernel=5), "winograd"),
        (conv(), "direct"),
        (conv(precision="fp16"), "gemm"),
        (replace(conv(), flops=1), "gemm"),  # grouped: fewer operations than full filters have
        (replace(conv(), flops=None), "gemm"),
        (replace(conv(), kind="linear"), "gemm"),
        (replace(conv(), inputs=((32, 256, 196),)), "gemm"),
    ],
)
def test_unsupported_shapes_have_no_time(asked: LayerRun, algorithm: str) -> None:
    assert convolution_us(asked, H200, algorithm) is None
