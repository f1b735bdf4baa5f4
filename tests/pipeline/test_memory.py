"""The arena of a network: the same by the names of phases, and of nothing that is unknown."""

from typing import Any

import pytest
from torch import nn

from lamina import pipeline
from lamina.build import Target
from lamina.errors import UsageError
from lamina.spec import Phase


@pytest.fixture
def target() -> Target:
    network = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    return pipeline.find(network, input_size=(16,))[0]


@pytest.mark.parametrize("phases", [[Phase.FORWARD], [*Phase]])
def test_phases_may_be_names(target: Target, phases: list[Phase]) -> None:
    names = [phase.value for phase in phases]
    assert pipeline.memory(target, 4, names, "fp32") == pipeline.memory(target, 4, phases, "fp32")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"phases": ["foward"]}, "phase 'foward' is unknown: did you mean 'forward'"),
        ({"precision": "fp31"}, "precision 'fp31' is unknown: did you mean 'fp32'"),
        ({"batch": 0}, "batch: expected a whole number of at least 1, got 0"),
        ({"batch": -4}, "batch: expected a whole number of at least 1, got -4"),
    ],
)
def test_what_is_unknown_is_refused(target: Target, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pipeline.memory(target, **{"batch": 4, "phases": ["forward"], "precision": "fp32"} | changed)
