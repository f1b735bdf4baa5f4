from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.simulate.workloads import RecordedMask, read_masks, write_masks

recordings = st.lists(
    st.builds(
        lambda name, iteration, shape, seed: RecordedMask(
            name, iteration, np.random.default_rng(seed).random(shape) < 0.5
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12),
        st.integers(0, 2**63 - 1),
        st.tuples(*[st.integers(1, 5)] * 4),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=4,
)
MASK = np.array([[[[True, False]]], [[[True, True]]]])
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(recordings)
def test_masks_come_back(tmp_path: Path, masks: list[RecordedMask]) -> None:
    path = tmp_path / "masks.npz"
    write_masks(path, masks)
    back = read_masks(path)
    assert [(each.name, each.iteration) for each in back] == [(each.name, each.iteration) for each in masks]
    for one, two in zip(back, masks, strict=True):
        assert one.mask.dtype == np.bool_
        np.testing.assert_array_equal(one.mask, two.mask)


def test_eight_values_take_a_byte(tmp_path: Path) -> None:
    write_masks(tmp_path / "m.npz", [RecordedMask("conv1", 3, np.ones((1, 1, 3, 3), dtype=np.bool_))])
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        assert file["bits"].tolist() == [0xFF, 0x80]


@quick
@given(st.data())
def test_a_broken_file_is_named_never_misread(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "masks.npz"
    write_masks(path, [RecordedMask("conv1", 3, np.ones((2, 3, 4, 5), dtype=np.bool_))])
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with suppress(UsageError):
        (back,) = read_masks(path)
        assert back.mask.shape == (2, 3, 4, 5) and back.mask.all()  # a byte that no reader looks at


GOOD = {
    "names": np.array(["a"]),
    "iterations": np.array([0]),
    "shapes": np.array([[1, 1, 2, 4]]),
    "bits": np.zeros(1, dtype=np.uint8),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": np.array([{}])}, "expected a .npz file of masks"),
        ({"names": np.array([1])}, "names: expected texts, got int64"),
        ({"bits": np.zeros(1)}, "bits: expected uint8, got float64"),
        ({"bits": np.zeros(2, dtype=np.uint8)}, "expected 1 bytes of bits for its shapes, got 2"),
        ({"shapes": np.array([[1, 1, 8]])}, "a shape of four sizes"),
        ({"shapes": np.array([[1, 1, -2, -4]])}, "positive sizes"),
        ({"iterations": np.array([-1])}, "iterations of at least 0"),
        ({"iterations": np.array([0, 1])}, "an iteration and a shape"),
        ({"names": np.array([], dtype="U1"), "iterations": np.array([], dtype=int)}, "shape of four sizes"),
    ],
)
def test_invalid_masks_are_rejected(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, **(GOOD | change))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        read_masks(path)


def test_other_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_masks(tmp_path / "m.npz")
    np.savez(tmp_path / "m.npz", names=np.array(["a"]))
    with pytest.raises(UsageError, match="iterations, shapes, bits missing"):
        read_masks(tmp_path / "m.npz")


@pytest.mark.parametrize(
    "mask",
    [
        RecordedMask("a", 0, np.ones((1, 2, 2), dtype=np.bool_)),
        RecordedMask("a", 0, np.ones((0, 1, 2, 2), dtype=np.bool_)),
        RecordedMask("a", 0, np.ones((1, 1, 2, 2))),  # type: ignore[arg-type]
        RecordedMask("", 0, MASK),
        RecordedMask("a", -1, MASK),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, mask: RecordedMask) -> None:
    with pytest.raises(UsageError, match="expected"):
        write_masks(tmp_path / "m.npz", [mask])
    with pytest.raises(UsageError, match="at least one"):
        write_masks(tmp_path / "m.npz", [])
    assert not (tmp_path / "m.npz").exists()


def test_a_recording_serves_other_batches() -> None:
    recorded = RecordedMask("a", 0, MASK)
    np.testing.assert_array_equal(recorded.of((3, 1, 1, 2)), MASK[[0, 1, 0]])
    np.testing.assert_array_equal(recorded.of((1, 1, 1, 2)), MASK[:1])
    with pytest.raises(UsageError, match="images of"):
        recorded.of((2, 1, 2, 1))
