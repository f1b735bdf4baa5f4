"""Maps DNNMark's names and numbers of convolution algorithms, which are cuDNN's, to lamina's algorithms."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.spec.dnnmark.values import Warn
from lamina.spec.validated import short

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
"""Maps a key to the layer's field and the names that the key accepts."""


def algorithms(settings: Mapping[str, str], warn: Warn) -> dict[str, str]:
    """A convolution's three algorithms. ``algo`` is that of the weight gradient; fft and winograd also set forward."""
    if not any(settings[key] for key in ALGORITHMS):
        warn("no convolution algorithm is given: DNNMark used IMPLICIT_GEMM and ALGO_0; read as direct")
    chosen = {field: _algorithm(key, settings[key], names, warn) for key, (field, names) in ALGORITHMS.items()}
    if not settings["algofwd"] and settings["algo"] in _NAMED:
        chosen["algorithm"] = chosen["algorithm_weight"]
    return chosen


def _algorithm(key: str, text: str, names: Mapping[str, tuple[str, str]], warn: Warn) -> str:
    if text in names:
        name, algorithm = names[text]
        if text != algorithm:
            warn(f"{key}={text} is cuDNN's {name}; read as {algorithm}")
        return algorithm
    if text in _LIBRARY_CHOOSES:
        warn(f"{key}={text} leaves the choice to cuDNN; read as direct")
    elif text:
        warn(f"{key}={short(text)} is unknown and ignored; read as direct")
    return DIRECT
