import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.simulate.workloads import PATTERNS, im2col, line_density, pattern
from lamina.spec.geometry import Conv2dGeometry

names = st.sampled_from(sorted(PATTERNS))
densities = st.floats(0, 1)
SHAPE = (4, 24, 20, 20)


@settings(max_examples=60)
@given(names, st.tuples(*[st.integers(1, 6)] * 4), densities, st.integers(0, 2**32))
def test_a_seed_says_all(name: str, shape: tuple[int, int, int, int], density: float, seed: int) -> None:
    one, two = pattern(name, shape, density, seed), pattern(name, shape, density, seed)
    assert one.shape == shape and one.dtype == np.bool_
    np.testing.assert_array_equal(one, two)


@settings(max_examples=40)
@given(st.sampled_from(["iid", "spatial"]), densities, st.integers(0, 99))
def test_density_is_within_sampling_error(name: str, density: float, seed: int) -> None:
    """A cluster counts as one sample: its values are alike over about 4 pi blob**2 places."""
    mask = pattern(name, SHAPE, density, seed, blob=1.0)
    samples = mask.size / (4 * math.pi if name == "spatial" else 1)
    assert abs(mask.mean() - density) <= 6 * math.sqrt(density * (1 - density) / samples) + 1 / samples


@settings(max_examples=40)
@given(st.integers(1, 24), densities, st.integers(0, 99))
def test_channels_live_or_die_whole(channels: int, density: float, seed: int) -> None:
    mask = pattern("channel", (3, channels, 5, 5), density, seed)
    alive = mask.any(axis=(0, 2, 3))
    np.testing.assert_array_equal(alive, mask.all(axis=(0, 2, 3)))
    assert abs(alive.sum() - density * channels) < 1


def test_live_channels_are_as_many_as_asked_on_average() -> None:
    masks = [pattern("channel", (1, 3, 1, 1), 0.5, seed) for seed in range(600)]
    assert np.mean(masks) == pytest.approx(0.5, abs=0.04)
    assert np.mean(masks, axis=0).ravel() == pytest.approx([0.5] * 3, abs=0.09)


@pytest.mark.parametrize("name", ["iid", "spatial"])
def test_an_image_is_the_same_at_any_batch(name: str) -> None:
    np.testing.assert_array_equal(pattern(name, (5, 3, 9, 9), 0.4, 7)[:2], pattern(name, (2, 3, 9, 9), 0.4, 7))


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_seeds_differ(name: str) -> None:
    assert (pattern(name, SHAPE, 0.5, 1) != pattern(name, SHAPE, 0.5, 2)).any()


def test_independent_zeros_leave_no_line_empty() -> None:
    """A line of 16 is all zero with probability s ** 16."""
    density = 0.15
    columns = im2col(pattern("iid", (8, 256, 8, 8), density, 3), Conv2dGeometry())
    assert line_density(columns) == pytest.approx(1 - (1 - density) ** 16, abs=0.01)


def test_clusters_hold_together() -> None:
    """Neighbours agree far more often than independent values do, and more so with larger clusters."""

    def agreement(name: str, blob: float = 2.0) -> float:
        mask = pattern(name, SHAPE, 0.5, 5, blob)
        return float((mask[..., 1:] == mask[..., :-1]).mean())

    assert agreement("iid") == pytest.approx(0.5, abs=0.03)
    assert agreement("spatial", 1.0) > 0.65
    assert agreement("spatial", 3.0) > agreement("spatial", 1.0) + 0.1
    assert agreement("spatial", 0.0) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_all_and_nothing(name: str, density: float) -> None:
    assert (pattern(name, (2, 3, 4, 4), density, 0) == (density == 1)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "spacial"}, "did you mean 'spatial'"),
        ({"shape": (1, 2, 3)}, "four positive sizes"),
        ({"shape": (1, 0, 3, 3)}, "four positive sizes"),
        ({"density": math.nan}, "density from 0 to 1, got nan"),
        ({"density": 1.1}, "density from 0 to 1"),
        ({"seed": -1}, "seed"),
        ({"blob": math.inf}, "blob"),
    ],
)
def test_what_cannot_be_meant_is_rejected(change: dict[str, object], message: str) -> None:
    asked: dict[str, object] = {"name": "iid", "shape": (1, 2, 3, 3), "density": 0.5, "seed": 0}
    with pytest.raises(UsageError, match=message):
        pattern(**(asked | change))  # type: ignore[arg-type]
