"""Damaged archives: every way an .npz can be wrong ends in a UsageError that names it."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.build.data import archive
from lamina.errors import UsageError


def npz(compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, array in (("x", np.arange(50, dtype=np.uint8)), ("y", np.arange(7))):
            member = io.BytesIO()
            np.save(member, array)
            file.writestr(f"{name}.npy", member.getvalue())
    return stream.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.npz"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_arrays_are_read(path: Path, compression: int) -> None:
    path.write_bytes(npz(compression))
    assert archive.keys(path) == {"x", "y"}
    y, x = archive.arrays(path, "y", "x")
    assert (x.sum(), y.sum()) == (sum(range(50)), sum(range(7)))


def test_a_file_that_is_no_archive_has_no_keys(path: Path) -> None:
    for data in (b"", b"PK", b"\x93NUMPY", b"hello"):
        path.write_bytes(data)
        assert archive.keys(path) == frozenset()


def test_a_missing_array_is_named(path: Path) -> None:
    path.write_bytes(npz())
    with pytest.raises(UsageError, match="expected the arrays x, z, found no z"):
        archive.arrays(path, "x", "z")


def test_pickled_objects_are_rejected(path: Path) -> None:
    np.savez(path, x=np.array([{"any": "object"}], dtype=object))
    with pytest.raises(UsageError, match=r"a\.npz: expected an \.npz file of plain arrays.*allow_pickle=False"):
        archive.arrays(path, "x")


def assert_names(error: UsageError, file: str) -> None:
    assert str(error).startswith(f"{file}: expected")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([npz(zipfile.ZIP_STORED), npz(), npz(zipfile.ZIP_LZMA)]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 600),
)
def test_damage_always_raises_usage_error(path: Path, whole: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(whole[:-cut] if cut else whole)
    for at, value in changes:
        if data:
            data[at % len(data)] = value
    path.write_bytes(data)
    try:
        names = archive.keys(path)
        read = archive.arrays(path, *sorted(names)) if names else []
    except UsageError as error:
        assert_names(error, str(path))
    else:
        assert all(isinstance(array, np.ndarray) for array in read)


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 2), int), np.array(["a"])])
def test_labels_must_be_one_axis_of_integers(path: Path, wrong: np.ndarray) -> None:
    with pytest.raises(UsageError, match="expected y as one axis of integers, got"):
        archive.whole_numbers(wrong, path, "y")


def test_pixels_must_be_bytes(path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected x as uint8 of 3 or 4 axes, got float64 of shape \(2, 2, 2\)"):
        archive.unsigned_bytes(np.zeros((2, 2, 2)), path, "x", axes=(3, 4))


def test_a_bomb_is_not_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST", 1 << 20)
    np.savez_compressed(path, x=np.zeros(1 << 22, np.uint8), y=np.arange(3))
    with pytest.raises(UsageError, match="x unpacks from 4 KiB to 4 MiB; save it without compression"):
        archive.arrays(path, "x")
    assert archive.arrays(path, "y")[0].tolist() == [0, 1, 2]


def test_a_member_that_is_no_array_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archived:
        archived.writestr("x.npy", b"no array at all")
    with pytest.raises(UsageError, match="x is no array"):
        archive.arrays(path, "x")
