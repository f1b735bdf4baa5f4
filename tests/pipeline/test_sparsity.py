"""sparsity: a training run that is watched for zeros, stored and recorded."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lamina.accelerate.training.sparsity_monitor import Parameters
from lamina.build import Target
from lamina.errors import LaminaError, UsageError
from lamina.pipeline.sparsity import Masks, sparsity
from lamina.run import Progress
from lamina.simulate.workloads import provenance_of, read_masks
from lamina.spec import Input
from lamina.spec.training import Training
from lamina.store import Store

SETTINGS = Training(batch=8, warmup_steps=0, learning_rate=0.01)


@pytest.fixture
def data(tmp_path: Path) -> str:
    generator = np.random.default_rng(0)
    arrays = {f"x_{split}": generator.integers(0, 256, (20, 8, 8)).astype(np.uint8) for split in ("train", "test")}
    arrays |= {f"y_{split}": (np.arange(20) % 2).astype(np.uint8) for split in ("train", "test")}
    np.savez(tmp_path / "noise.npz", **arrays)
    return str(tmp_path / "noise.npz")


def make(classes: int | None) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, classes or 2)
    )


TARGET = Target("small", (Input(shape=(1, 8, 8)),), make)


def test_every_observation_is_stored(store: Store, data: str) -> None:
    events: list[object] = []
    found = sparsity(TARGET, data, SETTINGS, store, iterations=13, exhaustive=True, watch=events.append)
    stored = store.sparsities(found.run_id)
    assert [(row.layer, row.iteration) for row in stored] == [(name, i) for i in range(13) for name in ("1", "3")]
    assert stored == tuple(observation.record() for observation in found.observations)
    assert all(0 < row.density < 1 and row.tensor == "output" for row in stored)
    (this,) = store.runs()
    assert (this.verb, this.status, this.config["iterations"]) == ("sparsity", "done", 13)
    assert this.config["data"] == data and this.config["exhaustive"] is True
    assert [event.step for event in events if isinstance(event, Progress)] == [10, 13]


def test_observed_iterations_are_those_of_an_exhaustive_run(store: Store, data: str) -> None:
    everything = sparsity(TARGET, data, SETTINGS, store, iterations=12, exhaustive=True)
    parameters = Parameters(initial_period=4, duration=2, hibernation_period=8, sparse_enough=0.0)
    sampled = sparsity(TARGET, data, SETTINGS, store, iterations=12, parameters=parameters)
    assert {found.iteration for found in sampled.observations} == {0, 1, 4, 5, 8, 9}
    assert set(map(str, sampled.observations)) < set(map(str, everything.observations))
    assert [each.period for each in sampled.maps] == [4, 4]


def test_masks_are_those_of_the_convolutions_inputs(store: Store, data: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "masks.npz"
    found = sparsity(TARGET, data, SETTINGS, store, iterations=7, exhaustive=True, masks=Masks(path, every=3, images=8))
    masks = read_masks(path)
    assert [(each.name, each.iteration) for each in masks] == [("0", 2), ("2", 2), ("0", 5), ("2", 5)]
    densities = {o.iteration: o.density for o in found.observations if o.name == "1"}
    for each in masks[1::2]:
        assert each.mask.shape[1:] == (4, 6, 6)
        assert each.mask.mean() == pytest.approx(densities[each.iteration])


def test_masks_of_named_layers_say_where_they_are_from(store: Store, data: str, tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    chosen = Masks(path, every=2, images=3, layers=("2",))
    sparsity(TARGET, data, SETTINGS, store, iterations=2, masks=chosen, command="lamina sparsity x")
    assert [(each.name, each.iteration, len(each.mask)) for each in read_masks(path)] == [("2", 1, 3)]
    about = provenance_of(path)
    (this,) = store.runs()
    assert about["command"] == "lamina sparsity x" and about["data"] == data
    assert about["commit"] == this.environment["commit"] and about["device"] == this.environment["device"]
    with pytest.raises(UsageError, match="layer 'conv9' is no convolution"):
        sparsity(TARGET, data, SETTINGS, store, iterations=2, masks=Masks(path, 1, 1, ("conv9",)))


def test_masks_of_gradients_have_the_zeros_of_the_relu_behind(store: Store, data: str, tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    sparsity(TARGET, data, SETTINGS, store, iterations=1, masks=Masks(path, every=1, images=8, gradients=True))
    masks = {each.name: each.mask for each in read_masks(path)}
    assert [*masks] == ["0", "2", "2 gradient", "0 gradient"]
    # Behind the first convolution's ReLU is the second's input: where it is zero, no gradient comes back.
    assert masks["0 gradient"].shape == masks["2"].shape and not (masks["0 gradient"] & ~masks["2"]).any()
    assert masks["0 gradient"].any()


def test_a_failed_run_keeps_what_it_saw(store: Store, data: str) -> None:
    with pytest.raises(LaminaError, match="the loss is"):
        sparsity(
            TARGET, data, SETTINGS.model_copy(update={"learning_rate": 1e30}), store, iterations=30, exhaustive=True
        )
    (this,) = store.runs()
    assert this.status == "failed"
    assert max(row.iteration for row in store.sparsities(this.id)) == 8


def test_what_makes_no_sense_is_refused(store: Store, data: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1 iteration"):
        sparsity(TARGET, data, SETTINGS, store, iterations=0)
    plain = Target("plain", TARGET.inputs, lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.ReLU()))
    with pytest.raises(UsageError, match="nn.Conv2d"):
        sparsity(plain, data, SETTINGS, store, iterations=1, masks=Masks(tmp_path / "m.npz", 1))
    with pytest.raises(UsageError, match="at least 1 iteration and 1 image"):
        sparsity(TARGET, data, SETTINGS, store, iterations=1, masks=Masks(tmp_path / "m.npz", 0))
    with pytest.raises(UsageError, match="at least every 1 iterations, got every 2"):
        sparsity(TARGET, data, SETTINGS, store, iterations=1, masks=Masks(tmp_path / "m.npz", 2))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        sparsity(TARGET, data, SETTINGS, store, iterations=1, masks=Masks(tmp_path / "file" / "m.npz", 1))
    assert store.runs() == ()


def test_hooks_do_not_change_training(store: Store, data: str) -> None:
    losses: list[list[float]] = []
    for exhaustive in (False, True):
        events: list[object] = []
        sparsity(TARGET, data, SETTINGS, store, iterations=10, exhaustive=exhaustive, watch=events.append)
        losses.append([event.train_loss for event in events if isinstance(event, Progress)])
    assert losses[0] == losses[1]
    assert torch.isfinite(torch.tensor(losses[0])).all()
