"""A front as one model: it switches between networks, and keeps to the limits that it is given."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.errors import UsageError
from lamina.pipeline.apply.front import FRONT
from lamina.pipeline.deft.recipe_files import Origin, save
from lamina.spec.plan import Alternative, Plan
from lamina.spec.plan_file import write_plan

IMPL = "circulant[block_size=4,impl=reference]"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def among(names: tuple[str, ...], name: str, layer: nn.Module) -> bool:
    return name in names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A front of three networks: dense, one layer changed, two layers changed."""
    points = []
    for index, (names, accuracy, time_us) in enumerate(
        ((("0", "2"), 80.0, 10.0), (("0",), 89.0, 20.0), ((), 90.0, 30.0))
    ):
        methods = dict.fromkeys(names, IMPL)
        points.append(Alternative(time_us=time_us, accuracy=accuracy, methods=methods))
        model, _ = lamina.convert(net(), lamina.Circulant(4, impl="reference"), partial(among, names))
        merged = dict.fromkeys(names, (IMPL, ()))
        for own in (tmp_path / FRONT / str(index), *([tmp_path] if names == ("0",) else [])):
            save(own, model, net(), Origin("net", 4, None), "fp32", {}, merged)
    write_plan(Plan(network="net", goal="infer", batch=2, front=tuple(points)), tmp_path / "plan.toml")
    return tmp_path


def test_the_fastest_within_the_accuracy_and_the_most_accurate_within_the_time(folder: Path) -> None:
    model = lamina.load_front(folder, net())
    x = torch.randn(3, 8)
    by_plan = model(x)
    assert model.use(accuracy_drop=0.0).methods == {} and torch.equal(model(x), net()(x))
    assert model.use(accuracy_drop=1.5).methods == {"0": IMPL} and torch.equal(model(x), by_plan)
    assert model.use(latency_us=12.0).accuracy == 80.0 and not torch.equal(model(x), by_plan)
    assert type(model[2]).__name__ == "BlockCirculantLinear"
    assert model.use(latency_us=1e3).accuracy == 90.0 and type(model[2]) is nn.Linear
    assert isinstance(model, nn.Sequential) and len(list(model.parameters())) == 4


@pytest.mark.parametrize(
    ("limits", "message"),
    [({}, "one of them"), ({"accuracy_drop": 1.0, "latency_us": 1.0}, "one of them"), ({"latency_us": 1.0}, "10 us")],
)
def test_limits_that_nothing_keeps(folder: Path, limits: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lamina.load_front(folder, net()).use(**limits)


def test_a_study_without_a_front_says_so(folder: Path) -> None:
    for file in (folder / FRONT).rglob("recipe.json"):
        file.unlink()
    with pytest.raises(UsageError, match="lamina study --front"):
        lamina.load_front(folder, net())


@pytest.mark.parametrize("load", [lamina.load, lamina.load_front])
def test_what_is_no_path_is_refused(load: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError, match="path: expected a path, got None"):
        load(None)
