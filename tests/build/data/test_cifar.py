from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.build.data import cifar, load
from lamina.errors import UsageError

RECORD = 3073


def record(label: int, value: int) -> bytes:
    """Red 1 + value, green 2 + value, blue 3 + value everywhere; the very first pixel's red is 200."""
    planes = bytearray(b"".join(bytes([channel + value]) * 1024 for channel in (1, 2, 3)))
    planes[0] = 200
    return bytes([label]) + bytes(planes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data_batch_1.bin").write_bytes(record(3, 0) + record(9, 10))
    (tmp_path / "data_batch_2.bin").write_bytes(record(0, 20))
    (tmp_path / "test_batch.bin").write_bytes(record(5, 30))
    return tmp_path


def test_batches_are_read_in_order(folder: Path) -> None:
    train, test = load(folder), load(folder, "test")
    assert train.x.shape == (3, 3, 32, 32)
    assert train.y.tolist() == [3, 9, 0]
    assert train.x[:, :, 0, 0].tolist() == [[200, 2, 3], [200, 12, 13], [200, 22, 23]]
    assert train.x[:, 0, 0, 1].tolist() == [1, 11, 21]
    assert (len(test), test.classes[int(test.y[0])]) == (1, "dog")


def test_a_truncated_batch_is_named(folder: Path) -> None:
    file = folder / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"data_batch_2\.bin: expected whole records of 3073 bytes, got 3072 bytes"):
        load(folder)


def test_a_missing_split_is_named(folder: Path) -> None:
    (folder / "test_batch.bin").unlink()
    with pytest.raises(UsageError, match="has no split 'test'"):
        load(folder, "test")


def test_a_label_out_of_range_is_located() -> None:
    with pytest.raises(UsageError, match="b: expected labels from 0 to 9, got 17 in record 1"):
        cifar.parse(record(9, 0) + record(17, 0), "b")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data())
def test_only_whole_records_are_read(labels: list[int], data: st.DataObject) -> None:
    whole = b"".join(record(label, 0) for label in labels)
    x, y = cifar.parse(whole, "b")
    assert (x.shape, y.tolist()) == ((len(labels), 3, 32, 32), labels)
    cut = data.draw(st.integers(0, len(whole) - 1).filter(lambda size: size % RECORD or size == 0))
    with pytest.raises(UsageError, match="b: expected whole records"):
        cifar.parse(whole[:cut], "b")


def assert_names(error: UsageError, file: str) -> None:
    assert str(error).startswith(f"{file}: expected")


@given(st.binary(max_size=300), st.sampled_from([0, 1, 3000, RECORD, 2 * RECORD]))
def test_garbage_is_rejected_or_consistent(noise: bytes, size: int) -> None:
    data = (noise * (size // max(1, len(noise)) + 1))[:size] if noise else bytes(size)
    try:
        x, y = cifar.parse(data, "b")
    except UsageError as error:
        assert_names(error, "b")
    else:
        assert np.concatenate([y[:, None], x.reshape(len(y), -1)], axis=1).tobytes() == data
