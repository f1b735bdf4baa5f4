"""Colours must be told apart by everyone, and read."""

from itertools import combinations

import numpy as np
import pytest

from lamina.report.palette import DARK, LIGHT, PHASES, SERIES, phase_colour

# Simulated vision of linear sRGB at full severity: Machado, Oliveira, Fernandes, IEEE TVCG 15(6), 2009.
VISION = {
    "typical": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
PALETTES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    """WCAG 2.2 contrast ratio."""
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


@PALETTES
@pytest.mark.parametrize("vision", VISION)
def test_phases_differ_for_every_eye(palette, vision: str) -> None:
    seen = [lab(VISION[vision] @ linear(palette[phase])) for phase in PHASES]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 20


@PALETTES
def test_neighbouring_series_differ(palette) -> None:
    seen = [lab(linear(palette[name])) for name in (*SERIES, "rest")]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 20


@PALETTES
def test_phases_differ_in_grey_print(palette) -> None:
    lightness = sorted(lab(linear(palette[phase]))[0] for phase in PHASES)
    assert min(np.diff(lightness)) > 8


@PALETTES
def test_text_and_marks_stand_out(palette) -> None:
    for paper in ("paper", "raised"):
        for ink in ("ink", "muted", "accent", "alarm"):
            assert contrast(palette[ink], palette[paper]) >= 4.5, (ink, paper)
    for mark in (*PHASES, "step", *SERIES, "rest", "heat"):
        assert contrast(palette[mark], palette["paper"]) >= 3, mark


def test_light_and_dark_name_the_same_colours() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert [phase_colour(phase) for phase in (*PHASES, "end_to_end")] == [*PHASES, "step"]
