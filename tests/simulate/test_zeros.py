from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tests.simulate.small import product

from lamina.errors import UsageError
from lamina.pipeline.targets import find
from lamina.simulate.workloads import (
    RecordedMask,
    convolutions,
    mask_names,
    pattern,
    provenance_of,
    read_masks,
    shipped_masks,
    write_masks,
)
from lamina.simulate.zeros import Zeros

MAP = (2, 3, 8, 8)


@pytest.fixture
def file(tmp_path: Path) -> str:
    masks = [RecordedMask(name, i, pattern("iid", MAP, 0.5, i)) for name in ("conv1", "conv2") for i in (10, 20)]
    write_masks(tmp_path / "masks.npz", masks)
    return str(tmp_path / "masks.npz")


def test_patterns_are_generated_for_the_layer_s_map() -> None:
    zeros = Zeros(pattern="spatial", density=0.3, blob=1.0, seed=4)
    np.testing.assert_array_equal(zeros.mask(product()), pattern("spatial", MAP, 0.3, 4, 1.0))
    assert Zeros(density=1.0).mask(product()).all()


def test_recordings_are_found_by_layer_and_iteration(file: str) -> None:
    last, first = (Zeros(pattern="recorded", masks=file, iteration=i) for i in (-1, 10))
    np.testing.assert_array_equal(last.mask(product("conv2")), pattern("iid", MAP, 0.5, 20))
    np.testing.assert_array_equal(first.mask(product()), pattern("iid", MAP, 0.5, 10))
    assert first.mask(product(images=5)).shape == (5, 3, 8, 8)


@pytest.mark.parametrize("name", ["iid", "spatial"])
def test_generated_patterns_have_the_density_of_the_recording(file: str, name: str) -> None:
    recorded = Zeros(pattern="recorded", masks=file, iteration=10).mask(product())
    zeros = Zeros.model_validate({"pattern": name, "masks": file, "iteration": 10, "density": 0.9})
    np.testing.assert_array_equal(zeros.mask(product()), pattern(name, MAP, float(recorded.mean()), 0))
    with pytest.raises(UsageError, match="layer 'conv3'"):
        zeros.mask(product("conv3"))


@pytest.mark.parametrize("name", mask_names())
def test_shipped_masks_are_of_several_epochs_and_say_where_they_are_from(name: str) -> None:
    masks, about = read_masks(shipped_masks(name)), provenance_of(shipped_masks(name))
    assert about["network"] == name and f"lamina sparsity {name} " in about["command"]
    assert about["commit"] and "dirty" not in about["commit"] and about["date"] and about["device"]
    moments = {each.name: sorted(one.iteration for one in masks if one.name == each.name) for each in masks}
    assert all(len(own) >= 3 and own == [*range(own[0], own[-1] + 1, own[0] + 1)] for own in moments.values())
    gemms = {each.layer: each for each in convolutions(find(name)[0].resolve(4))}
    for each in masks:
        assert 0 < each.density < 1 and each.of(gemms[each.name].map).shape == gemms[each.name].map
    assert Zeros(pattern="recorded", masks=name).mask(gemms[masks[-1].name]).any()


def test_another_content_is_another_configuration(file: str) -> None:
    before = Zeros(pattern="recorded", masks=file)
    assert Zeros.model_validate(before.model_dump()) == before
    write_masks(Path(file), [RecordedMask("conv1", 0, pattern("iid", MAP, 0.1, 1))])
    assert Zeros(pattern="recorded", masks=file) != before
    with pytest.raises(ValidationError, match="expected the content"):
        Zeros.model_validate(before.model_dump())


def test_what_is_not_recorded_is_rejected(file: str) -> None:
    zeros = Zeros(pattern="recorded", masks=file)
    with pytest.raises(UsageError, match="layer 'conv3': did you mean 'conv"):
        zeros.mask(product("conv3"))
    with pytest.raises(UsageError, match="images of"):
        zeros.mask(product(channels=4))
    with pytest.raises(UsageError, match="expected one of the iterations 10, 20, got 15"):
        Zeros(pattern="recorded", masks=file, iteration=15).mask(product())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": float("nan")}, "density"),
        ({"density": 1.5}, "density"),
        ({"seed": -1}, "seed"),
        ({"pattern": "blobs"}, "pattern"),
        ({"pattern": "recorded"}, "expected masks, a file or the name"),
        ({"masks": "none.npz", "pattern": "recorded"}, "cannot be read"),
        ({"masks": 5}, "masks"),
    ],
)
def test_impossible_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Zeros(**settings)  # type: ignore[arg-type]
