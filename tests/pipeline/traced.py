"""Networks of the zoo that are traced once in a process, where their layers are not what is tested."""

from importlib import import_module
from typing import Any

import pytest

from lamina.build import Target
from lamina.simulate.hierarchy.config import Device
from lamina.spec.zoo import ZOO

simulate = import_module("lamina.pipeline.simulate")  # the package's name is its function

LAYERS: dict[Any, Any] = {}
DEVICES: dict[str, Device] = {}
resolve, preset = Target.resolve, simulate.preset


def resolve_once(target: Target, batch: int | None = None) -> Any:
    if target.network is not None or target.name not in ZOO:
        return resolve(target, batch)
    key = target.name, target.inputs, batch
    if key not in LAYERS:
        LAYERS[key] = resolve(target, batch)
    return LAYERS[key]


def preset_once(name: str) -> Device:
    if name not in DEVICES:
        DEVICES[name] = preset(name)
    return DEVICES[name]


@pytest.fixture(autouse=True)
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "resolve", resolve_once)
    monkeypatch.setattr(simulate, "preset", preset_once)
