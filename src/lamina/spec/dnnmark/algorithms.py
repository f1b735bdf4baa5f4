"""Convolution algorithms by DNNMark's names and numbers, which are cuDNN's, and what lamina has of them."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.spec.dnnmark.values import Remark
from lamina.spec.faults import short

DIRECT, GEMM, FFT, WINOGRAD = "direct", "gemm", "fft", "winograd"

_NAMED = {"fft": ("FFT", FFT), "winograd": ("WINOGRAD", WINOGRAD)}
_FORWARD = _NAMED | {
    "0": ("IMPLICIT_GEMM", DIRECT),
    "1": ("IMPLICIT_PRECOMP_GEMM", DIRECT),
    "2": ("GEMM", GEMM),
    "3": ("DIRECT", DIRECT),
    "4": ("FFT", FFT),
    "5": ("FFT_TILING", FFT),
    "6": ("WINOGRAD", WINOGRAD),
    "7": ("WINOGRAD_NONFUSED", WINOGRAD),
}
_DATA = _NAMED | {
    "0": ("ALGO_0", DIRECT),
    "1": ("ALGO_1", GEMM),
    "winograd_nonfused": ("WINOGRAD_NONFUSED", WINOGRAD),
    "fft_tiling": ("FFT_TILING", FFT),
}
_WEIGHT = _NAMED | {
    "0": ("ALGO_0", DIRECT),
    "1": ("ALGO_1", GEMM),
    "2": ("FFT", FFT),
    "3": ("ALGO_3", DIRECT),
    "4": ("WINOGRAD", WINOGRAD),
    "5": ("WINOGRAD_NONFUSED", WINOGRAD),
    "6": ("FFT_TILING", FFT),
}
_LIBRARY_CHOOSES = ("cudnn", "auto", "cudnnv7")

ALGORITHMS = {
    "algofwd": ("algorithm", _FORWARD),
    "algod": ("algorithm_data", _DATA),
    "algo": ("algorithm_weight", _WEIGHT),
}
"""Key -> the layer's field, and the names the key knows."""


def algorithms(settings: Mapping[str, str], remark: Remark) -> dict[str, str]:
    """A convolution's three algorithms. ``algo`` is the weight gradient's; fft and winograd serve both."""
    if not any(settings[key] for key in ALGORITHMS):
        remark("no convolution algorithm is named: DNNMark ran IMPLICIT_GEMM and ALGO_0; read as direct")
    chosen = {field: _algorithm(key, settings[key], names, remark) for key, (field, names) in ALGORITHMS.items()}
    if not settings["algofwd"] and settings["algo"] in _NAMED:
        chosen["algorithm"] = chosen["algorithm_weight"]
    return chosen


def _algorithm(key: str, text: str, names: Mapping[str, tuple[str, str]], remark: Remark) -> str:
    if text in names:
        name, algorithm = names[text]
        if text != algorithm:
            remark(f"{key}={text} is cuDNN's {name}; read as {algorithm}")
        return algorithm
    if text in _LIBRARY_CHOOSES:
        remark(f"{key}={text} leaves the choice to cuDNN; read as direct")
    elif text:
        remark(f"{key}={short(text)} is unknown and has no effect; direct stays")
    return DIRECT
