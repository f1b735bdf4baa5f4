"""A convolution by sparse matrix products, part by part, as in figure 6.3."""

from __future__ import annotations

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rows, fastest
from lamina.spec.published import PublishedValue

CONVERT = "convert, called"
"""Conversion with its launches, as the library's is timed."""
SPARSE = 80.0
"""Zeros in % at which parts are compared, where the paper names no density."""


def conversion_share(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Conversion to compressed sparse rows, in % of the time of im2col, conversion and product.

    Raises:
        ValueError: a part was not measured.
    """
    convert = fastest(rows, zeros=SPARSE, impl="csr", what=CONVERT)
    whole = convert + fastest(rows, zeros=SPARSE, impl="csr", what="product") + fastest(rows, what="im2col")
    return 100 * convert / whole, f"{100 * convert / whole:.3g} % at {SPARSE:g} % zeros, in compressed sparse rows"


def conversion_speedup(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Conversion to compressed sparse rows over conversion to the nonzero format."""
    ratios = {
        zeros: fastest(rows, zeros=zeros, impl="csr", what=CONVERT)
        / fastest(rows, zeros=zeros, impl="nonzero", what=CONVERT)
        for zeros in (SPARSE, 90.0)
    }
    best = max(ratios.values())
    return best, ", ".join(f"{ratio:.3g} x at {zeros:g} %" for zeros, ratio in ratios.items())


def over_library(rows: Rows, zeros: float) -> float:
    """Speedup of the convolution in the nonzero format, conversion included, over the library's dense one."""
    dense = fastest(rows, zeros=zeros, impl="dense", what="convolution")
    return dense / fastest(rows, zeros=zeros, impl="nonzero", what="convolution")


def at_90(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    ours = over_library(rows, 90.0)
    return ours, f"{ours:.3g} x over the library's fastest convolution"


def no_speedup_at_80(rows: Rows) -> Judged:
    ours = over_library(rows, SPARSE)
    return f"{ours:.3g} x at {SPARSE:g} % zeros", ours <= 1


MEASUREMENT = Measurement(
    ("sparse_libraries",),
    values={
        "dense-to-sparse conversion, share of the time": conversion_share,
        "speedup of the conversion over compressed sparse columns": conversion_speedup,
        "speedup over MIOpen at 90 % zeros": at_90,
    },
    statements={"no_speedup_at_80": no_speedup_at_80},
    run=live("libraries", "parts"),
    command="python -m benchmarks.sparse_gemm",
)
