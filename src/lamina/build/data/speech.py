""".npz files of short audio recordings with one label each, read as log-mel frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina.build.data import archive
from lamina.build.data.dataset import Samples, numbered
from lamina.errors import UsageError

FORM = "an .npz of recordings (wave int16, offsets, label, is_test, sample_rate), read as log-mel frames"

FRAMES, MELS = 100, 40
_HOP_SECONDS, _WINDOW_SECONDS = 0.010, 0.025
_FLOOR = 1e-6
_CHUNK = 256

_KEYS = ("wave", "offsets", "label", "is_test", "sample_rate")


def splits(path: Path) -> tuple[str, ...]:
    """Both splits if the file has recordings."""
    keys = archive.keys(path) if path.is_file() else frozenset()
    return ("train", "test") if set(_KEYS) <= keys else ()


def read(path: Path, split: str) -> Samples:
    """Frames ``(N, 100, 40)``, one per 10 ms: longer recordings are truncated at 1 s, shorter ones zero-padded.

    Raises:
        UsageError: the arrays are damaged or inconsistent.
    """
    wave, offs, label, is_test, rate = archive.arrays(path, *_KEYS)
    ends = archive.whole_numbers(offs, path, "offsets")
    labels = archive.whole_numbers(label, path, "label")
    chosen = archive.whole_numbers(is_test, path, "is_test").astype(bool) == (split == "test")
    if wave.ndim != 1 or wave.dtype != np.int16 or rate.ndim != 0 or rate.dtype.kind not in "iu" or int(rate) < 1000:
        raise UsageError(
            f"{path}: expected wave as one axis of int16 and sample_rate as a number of at least 1000, "
            f"got {wave.dtype} of shape {wave.shape} and {rate}"
        )
    recordings = len(ends) - 1
    if not recordings == len(labels) == len(chosen):
        raise UsageError(
            f"{path}: expected one label and one is_test for each of {recordings} recordings, "
            f"got {len(labels)} and {len(chosen)}"
        )
    if ends[0] < 0 or ends[-1] > len(wave) or (np.diff(ends) < 0).any():
        raise UsageError(f"{path}: expected offsets that increase from 0 to at most {len(wave)}")
    indices = np.flatnonzero(chosen)
    spectrogram = LogMel(int(rate))
    x = np.empty((len(indices), FRAMES, MELS), np.float32)
    for at in range(0, len(indices), _CHUNK):
        x[at : at + _CHUNK] = spectrogram(_padded(wave, ends, indices[at : at + _CHUNK], spectrogram.samples)).numpy()
    return Samples(x, labels[indices], numbered(labels))


def _padded(wave: NDArray[np.generic], ends: NDArray[np.int64], indices: NDArray[np.int64], samples: int) -> Tensor:
    signal = np.zeros((len(indices), samples), np.float32)
    for row, index in zip(signal, indices, strict=True):
        piece = wave[ends[index] : min(ends[index + 1], ends[index] + samples)]
        row[: len(piece)] = piece
    return torch.from_numpy(signal / 32768)


class LogMel:
    """Logarithm of mel-band power. ``(N, samples)`` in -1..1 to ``(N, 100, 40)``.

    Hann windows of 25 ms, rounded up to a power of two samples, every 10 ms; triangular filters evenly spaced
    on the mel scale from 0 to half the sample rate (Davis and Mermelstein 1980).
    """

    def __init__(self, sample_rate: int) -> None:
        self.hop = round(_HOP_SECONDS * sample_rate)
        self.window = 1 << (round(_WINDOW_SECONDS * sample_rate) - 1).bit_length()
        self.samples = self.window + (FRAMES - 1) * self.hop
        self.filters = mel_filters(sample_rate, self.window)

    def __call__(self, signal: Tensor) -> Tensor:
        spectrum = torch.stft(
            signal,
            self.window,
            hop_length=self.hop,
            window=torch.hann_window(self.window),
            center=False,
            return_complex=True,
        )
        power = spectrum.abs().square().transpose(1, 2)  # (N, frames, bins)
        return (power @ self.filters + _FLOOR).log()


def mel_filters(sample_rate: int, window: int) -> Tensor:
    """Triangular filters ``(window/2 + 1, 40)`` over spectrum bins; mel =  2595 log10(1 + f/700)."""
    top = 2595 * np.log10(1 + sample_rate / 2 / 700)
    corners = torch.from_numpy(700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1))
    bins = torch.linspace(0, sample_rate / 2, window // 2 + 1, dtype=torch.float64)[:, None]
    low, centre, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    return torch.minimum(rising, falling).clamp(min=0).float()
