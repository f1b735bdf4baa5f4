"""Networks as they will run: timed by turns, and judged on the samples that are meant."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from lamina import measure
from lamina.accelerate import convert
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.build.data import synthetic
from lamina.errors import UsageError
from lamina.pipeline.deft import calibration, deployed
from lamina.pipeline.deft.calibration import Material, accuracy, material
from lamina.pipeline.deft.deployed import Deployment, parameters


def parts() -> Material:
    data = [synthetic((1, 4, 4), 3, items, split=split) for items, split in ((40, "train"), (6, "val"), (9, "test"))]
    return Material(data[0], data[1], data[2], (1, 4, 4))


@pytest.fixture
def deployment() -> Deployment:
    return Deployment(torch.device("cpu"), "bf16", 8, parts())


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def test_networks_take_turns(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "REPEAT", measure.Repeat(1, 1, 0, 0.01, warmup=0))
    order: list[str] = []
    models = [deployment.deploy(network()), deployment.deploy(network())]
    for model, name in zip(models, "ab", strict=True):
        model.register_forward_hook(lambda *_, name=name: order.append(name))
    first, second = deployment.interleaved(*models)
    assert first.n == second.n == deployed.ROUNDS and first.clock == "cpu"
    assert 0 < first.q1_us <= first.median_us <= first.q3_us
    turns = [order[0], *(name for before, name in pairwise(order) if name != before)]
    assert turns == list("ab" * deployed.ROUNDS)
    assert deployment.ratio(*models) > 0


def test_noise_in_some_rounds_does_not_count(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(9.0, 4.0), (2.0, 40.0), (2.5, 5.0)])
    monkeypatch.setattr(
        Deployment, "_rounds", lambda *_: [[measure.summarize([us], "cpu", "-") for us in pair] for pair in times]
    )
    assert deployment.ratio(network(), network()) == 0.5


def test_the_example_fills_the_batch_with_what_there_is(deployment: Deployment) -> None:
    x = deployment.example()
    assert x.shape == (8, 1, 4, 4) and x.dtype == torch.bfloat16
    assert torch.equal(x[6:], x[:2])
    assert deployment.example("fp32").dtype == torch.float32


def test_accuracy_is_of_the_samples_that_are_meant(deployment: Deployment) -> None:
    model = network().bfloat16()
    for samples, found in (
        (deployment.material.calibration, deployment.calibrated),
        (deployment.material.test, deployment.tested),
    ):
        hits = (model(samples.x.bfloat16()).argmax(1) == samples.y).double().mean()
        assert found(model) == pytest.approx(100 * float(hits))
    with pytest.raises(UsageError, match="at least one sample"):
        accuracy(model, [], torch.device("cpu"))


def test_what_is_measured_of_a_network(deployment: Deployment) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Linear(3, 3))
    with torch.no_grad():
        model[1].weight[0] = 0
    model, _ = convert(model, WeightOnly("e4m3"), lambda name, _: name == "2")
    found = deployment.measured("it", deployment.deploy(model), measure.summarize([1.0], "cpu", "-"))
    assert found.parameters == parameters(model) == 2 * 16 + 3 + 9 + 3
    assert found.multiplications == 16 * 3 + 9
    assert found.bytes == 2 * (48 + 3) + 9 + 4 * 3 + 2 * 3


def test_samples_are_set_apart_by_the_seed() -> None:
    whole, other = material("fashion-mnist", (1, 28, 28), 100, 0), material("fashion-mnist", (1, 28, 28), 100, 1)
    again = material("fashion-mnist", (1, 28, 28), 100, 0)
    assert len(whole.calibration) == 100
    assert torch.equal(whole.calibration.x, again.calibration.x)
    assert not torch.equal(whole.calibration.x, other.calibration.x)
    rows = torch.cat([whole.learn.x, whole.calibration.x]).flatten(1).long()
    rest = torch.cat([other.learn.x, other.calibration.x]).flatten(1).long()
    assert torch.equal(rows.sum(1).sort().values, rest.sum(1).sort().values)  # every sample, once
    assert len(material("fashion-mnist", (1, 28, 28), 10**9, 0).calibration) == len(rows) // 5
    assert whole.classes == 10 and whole.batch_size() == 256 and replace(whole, shape=(3, 2048, 2048)).batch_size() == 1


def test_weights_are_fitted_to_training_samples() -> None:
    parts = material("fashion-mnist", (1, 28, 28), 100, 0)
    x = torch.cat([x for x, _ in parts.fitting(32)])
    assert len(x) == 128
    seen, judged = (torch.cat([x for x, _ in parts.ordered(part)]) for part in (parts.learn, parts.calibration))
    assert torch.equal(x, seen[:128]) and not any(torch.equal(one, other) for one in x[:8] for other in judged)


def test_samples_stay_where_there_is_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> set[str]:
        parts = material("fashion-mnist", (1, 28, 28), 100, 0, torch.device("meta"))
        return {one.device.type for part in (parts.learn, parts.calibration, parts.test) for one in (part.x, part.y)}

    assert devices() == {"meta"}
    monkeypatch.setattr(calibration, "RESIDENT", 1 << 10)
    assert devices() == {"cpu"}


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 40, 33), (1, 28, 28)], ids=str)
def test_samples_on_a_gpu_are_prepared_there(shape: tuple[int, int, int]) -> None:
    host, device = (material("fashion-mnist", shape, 100, 0, torch.device(name)) for name in ("cpu", "cuda"))
    for augment in (False, True):
        pairs = zip(*(parts.batches(512, 0, 1, 90, augment) for parts in (host, device)), strict=True)
        for (x, y), (there, labels) in pairs:
            assert there.is_cuda and torch.equal(labels.cpu(), y)
            torch.testing.assert_close(there.cpu(), x, rtol=1e-4, atol=1e-4)
