import io
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from lamina.build.data import images
from lamina.errors import MissingError, UsageError


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


COLOURS = np.random.default_rng(0).integers(256, size=(6, 10, 3)).astype(np.uint8)


def test_pixels_come_channels_first() -> None:
    np.testing.assert_array_equal(images.decode(png(COLOURS), "p"), COLOURS.transpose(2, 0, 1))


def test_grey_becomes_three_equal_channels() -> None:
    decoded = images.decode(png(COLOURS[..., 0]), "p")
    np.testing.assert_array_equal(decoded, np.broadcast_to(COLOURS[..., 0], (3, 6, 10)))


def test_a_side_takes_the_centre_square() -> None:
    np.testing.assert_array_equal(images.decode(png(COLOURS), "p", side=6), COLOURS[:, 2:8].transpose(2, 0, 1))
    assert images.decode(png(COLOURS), "p", side=3).shape == (3, 3, 3)


def test_size_is_width_then_height(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(COLOURS))
    assert images.size(tmp_path / "a.png") == (10, 6)


@pytest.mark.parametrize("data", [b"", b"no image", png(COLOURS)[:60], png(COLOURS)[:20]])
def test_damage_is_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(UsageError, match=r"a\.png: expected a PNG or JPEG image"):
        images.decode(tmp_path / "a.png", str(tmp_path / "a.png"))


def assert_names(error: UsageError, file: str) -> None:
    assert str(error).startswith(f"{file}: expected")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_damage_always_raises_usage_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(png(COLOURS))
    for at, value in changes:
        data[at % len(data)] = value
    try:
        decoded = images.decode(bytes(data), "p", side=4)
    except UsageError as error:
        assert_names(error, "p")
    else:
        assert decoded.shape == (3, 4, 4)


def test_without_pillow_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = png(COLOURS)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingError, match="pip install pillow"):
        images.decode(data, "p")
