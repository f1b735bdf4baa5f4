from pathlib import Path

import numpy as np
import pytest
import torch

from lamina.build.data import load, speech
from lamina.errors import UsageError

RATE = 8000


def tone(frequency: float, seconds: float) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * frequency * np.arange(int(RATE * seconds)) / RATE)).astype(np.int16)


def members() -> dict[str, object]:
    waves = [tone(500, 0.3), tone(2000, 2.0), tone(3000, 0.5)]
    return {
        "wave": np.concatenate(waves),
        "offsets": np.cumsum([0, *map(len, waves)]),
        "label": np.array([0, 1, 2], np.uint8),
        "is_test": np.array([0, 0, 1], np.uint8),
        "sample_rate": np.int32(RATE),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "speech.npz"


def test_splits_follow_is_test(path: Path) -> None:
    np.savez(path, **members())
    train, test = load(path), load(path, "test")
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1], [2])
    assert train.classes == test.classes == ("0", "1", "2")
    assert (train.x.shape, train.x.dtype, train.kind) == ((2, 100, 40), torch.float32, "frames")


def test_a_tone_peaks_in_the_band_of_its_frequency(path: Path) -> None:
    np.savez(path, **members())
    corners = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 4000 / 700), 42) / 2595) - 1)
    for recording, frequency in zip(load(path).x, (500, 2000), strict=True):
        band = int(recording[5].argmax())
        assert corners[band] < frequency < corners[band + 2]


def test_short_recordings_end_in_silence_and_long_ones_are_cut(path: Path) -> None:
    np.savez(path, **members())
    short, long = load(path).x
    floor = np.log(1e-6)
    assert float(short[:28].amax(1).min()) > 0  # 0.3 s are 30 frames
    torch.testing.assert_close(short[31:], torch.full((69, 40), float(floor)))
    assert float(long.amax(1).min()) > 0


def test_it_is_the_textbook_spectrum() -> None:
    """One frame by the definition: a discrete Fourier sum, its squared modulus, the bands, the logarithm."""
    mel = speech.LogMel(RATE)
    signal = torch.randn(1, mel.samples)
    at = np.arange(256)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * at / 256)
    frame = signal[0, 3 * 80 : 3 * 80 + 256].double().numpy() * window
    power = [abs(np.sum(frame * np.exp(-2j * np.pi * bin * at / 256))) ** 2 for bin in range(129)]
    expected = np.log(np.array(power) @ mel.filters.double().numpy() + 1e-6)
    np.testing.assert_allclose(mel(signal)[0, 3].numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_every_mel_band_is_nonempty_and_bands_overlap(rate: int) -> None:
    mel = speech.LogMel(rate)
    assert mel.window >= 0.025 * rate > mel.window / 2
    assert float(mel.filters.sum(0).min()) > 0
    top = 2595 * np.log10(1 + rate / 2 / 700)
    first, last = (700 * (10 ** (top * index / 41 / 2595) - 1) for index in (1, 40))
    bins = torch.linspace(0, rate / 2, mel.window // 2 + 1)
    between = mel.filters[(bins >= first) & (bins <= last)]
    torch.testing.assert_close(between.sum(1), torch.ones(len(between)))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("wave", lambda a: a.astype(float), "wave as one axis of int16"),
        ("wave", lambda a: a[:-1], "offsets that increase from 0 to at most"),
        ("offsets", lambda a: a[::-1], "offsets that increase"),
        ("offsets", lambda a: a - 1, "offsets that increase"),
        ("offsets", lambda a: a[:-1], "for each of 2 recordings, got 3 and 3"),
        ("offsets", lambda a: a[:0], "recordings, got 3 and 3"),
        ("label", lambda a: a[1:], "for each of 3 recordings, got 2 and 3"),
        ("sample_rate", lambda a: np.array([8000]), "sample_rate as a number"),
        ("sample_rate", lambda a: np.int32(0), "sample_rate as a number of at least 1000"),
        ("is_test", lambda a: a * 0 + 1, "at least one, got 0 for 0"),
    ],
)
def test_damage_is_explained(path: Path, name: str, change: object, message: str) -> None:
    arrays = members()
    np.savez(path, **arrays | {name: change(arrays[name])})
    with pytest.raises(UsageError, match=message):
        load(path)
