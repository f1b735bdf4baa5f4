"""IDX files, written here byte by byte."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lamina.build.data import idx, load
from lamina.errors import UsageError


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Six train images in plain files, four test images in gzipped ones."""
    for prefix, items, pack in (("train", 6, lambda data: data), ("t10k", 4, gzip.compress)):
        suffix = ".gz" if prefix == "t10k" else ""
        x = np.arange(items * 12, dtype=np.uint8).reshape(items, 3, 4)
        y = np.arange(items, dtype=np.uint8) % 3
        (tmp_path / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(x)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(y)))
    return tmp_path


def test_a_folder_is_read(mnist: Path) -> None:
    train, test = load(mnist), load(mnist, "test")
    assert train.x.shape == (6, 1, 3, 4)
    assert train.x[1, 0, 2].tolist() == [20, 21, 22, 23]
    assert train.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert train.classes == ("0", "1", "2")
    assert (test.x.shape, test.y.tolist()) == ((4, 1, 3, 4), [0, 1, 2, 0])


def test_the_format_is_detected_from_the_content(mnist: Path) -> None:
    for kind in ("images", "labels"):
        (file,) = mnist.glob(f"train-{kind}*")
        file.rename(mnist / f"my-train-{len(kind)}{kind[0]}.bin")
    (mnist / "train-notes.txt").write_text("not IDX")
    assert len(load(mnist)) == 6


def test_a_plain_file_is_preferred_to_its_gzipped_copy(mnist: Path) -> None:
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress((mnist / "train-images-idx3-ubyte").read_bytes()))
    assert len(load(mnist)) == 6


def test_two_sets_in_a_folder_are_rejected(mnist: Path) -> None:
    (mnist / "train-other").write_bytes((mnist / "train-images-idx3-ubyte").read_bytes())
    with pytest.raises(UsageError, match=r"one IDX file of train images, got train-images-idx3-ubyte, train-other"):
        load(mnist)


def test_missing_labels_are_named(mnist: Path) -> None:
    (mnist / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match="one IDX file of train labels, got none"):
        load(mnist)


def test_a_truncated_file_is_named_with_both_sizes(mnist: Path) -> None:
    file = mnist / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte: expected 72 bytes .* got 67"):
        load(mnist)


def test_a_truncated_gzip_is_named(mnist: Path) -> None:
    file = mnist / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UsageError, match=r"t10k-images-idx3-ubyte\.gz: expected a complete gzip file"):
        load(mnist, "test")


def test_other_number_types_are_rejected() -> None:
    with pytest.raises(UsageError, match="expected IDX data of unsigned bytes"):
        idx.parse(b"\0\0\x0d\x01" + bytes(8), "floats")


shapes = arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)


@given(arrays.arrays(np.uint8, shapes))
def test_what_is_written_is_read(array: np.ndarray) -> None:
    np.testing.assert_array_equal(idx.parse(idx_bytes(array), "a"), array)


@given(arrays.arrays(np.uint8, shapes), st.data())
def test_a_file_cut_or_continued_is_rejected(array: np.ndarray, data: st.DataObject) -> None:
    whole = idx_bytes(array)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:cut], whole + b"x"):
        with pytest.raises(UsageError, match="a: expected"):
            idx.parse(damaged, "a")


def assert_names(error: UsageError, file: str) -> None:
    assert str(error).startswith(f"{file}: expected")


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: b"\0\0\x08" + tail))
def test_garbage_is_rejected_or_consistent(data: bytes) -> None:
    try:
        array = idx.parse(data, "a")
    except UsageError as error:
        assert_names(error, "a")
    else:
        assert idx_bytes(array) == data


@pytest.mark.parametrize("said", [(3,), (1 << 31,)])
def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: tuple[int, ...]) -> None:
    monkeypatch.setattr(idx, "_FREE", 1 << 16)
    monkeypatch.setattr(idx, "_RATIO", 10)
    monkeypatch.setattr(gzip, "decompress", None)  # unpacks all
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, *said) + bytes(1 << 22)))
    if said == (3,):
        assert len(idx.content(path)) == 8 + 3 + 1  # enough to see that it holds more than its header says
        return
    with pytest.raises(UsageError, match="unpacks to over 10 times its size"):
        idx.content(path)


def test_axes_that_no_array_has_are_refused() -> None:
    with pytest.raises(UsageError, match="a: expected the shape of an array"):
        idx.parse(struct.pack(">BBBB4I", 0, 0, 8, 4, 0, *[0x22222222] * 3), "a")
