"""The adaptive layer as a candidate: its calibration, and when it is made."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.methods.activation_sparsity import Sparse, functional
from lamina.accelerate.methods.activation_sparsity.candidates import candidates
from lamina.accelerate.methods.activation_sparsity.cost import Measured, Observed
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d
from lamina.accelerate.select import Cache, LayerCall, Selector, observe
from lamina.errors import UnsupportedError
from lamina.record import Timing
from lamina.spec import Phase

pytestmark = pytest.mark.usefixtures("where_kernels_run")

TIMES = {
    "dense": 10.0, "nonzero": 2.0, "row_union": 4.0, "row_union of a dense input": 12.0,
    "gradient dense": 25.0, "gradient row_union": 16.0, "sparse[impl=auto,density=0.25]": 5.0,
}  # fmt: skip


class Known:
    """A timer that runs each step and knows its time."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        self.calls.append(tuple(steps))
        for step in steps.values():
            step()
        return {name: Timing("cpu", "-", TIMES[name], TIMES[name], TIMES[name], 1) for name in steps}


@pytest.fixture(autouse=True)
def kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "is_supported", lambda x: True)


def quarter() -> Tensor:
    """A map of which one channel in four is not zero."""
    x = torch.zeros(1, 4, 4, 4)
    x[:, 1] = 1.0
    return x


def call_of(layer: nn.Module, x: Tensor) -> LayerCall:
    return observe(nn.Sequential(layer), ["0"], x)["0"]


def test_the_density_is_that_of_the_input() -> None:
    observed = Observed.of(quarter(), channels=1)
    assert observed.density == 0.25 and set(observed.union_density.values()) == {0.25}
    spread = Observed.of(torch.eye(4), channels=1)
    assert spread.density == 0.25 and set(spread.union_density.values()) == {1.0}  # wider than the matrix


def test_the_calibration_goes_through_the_measured_times() -> None:
    layer: Any = SparseAdaptiveConv2d(4, 4, 3)
    timer = Known()
    selector = Selector(timer, Cache(None, {}), "eager", training=True)
    found = candidates(layer, call_of(layer, quarter().requires_grad_()), selector)
    assert [*found] == ["impl=auto,density=0.25"] and timer.calls == []  # nothing is timed before it is made
    assert found["impl=auto,density=0.25"]() is layer and found["impl=auto,density=0.25"]() is layer
    assert len(timer.calls) == 1
    forward, gradient = (layer.calibration[phase] for phase in (Phase.FORWARD, Phase.BACKWARD_DATA))
    assert isinstance(forward, Measured) and forward.nonzero is not None and forward.union is not None
    assert (forward.dense_us, forward.nonzero.at(0.25), forward.nonzero.at(0.5)) == (10.0, 2.0, 4.0)
    assert (forward.union.at(0.25), forward.union.at(1.0)) == (pytest.approx(4.0), 12.0)
    assert gradient.dense_us == 15.0 and gradient.union is not None and gradient.union.at(1.0) == 6.0
    impls = layer.phase_impls(quarter())
    assert (impls.forward, impls.backward_data, impls.backward_weight) == ("nonzero", "row_union", "dense")
    assert layer.executed("forward")[0] == "sparse[impl=nonzero]" and layer.executed("backward_weight")[0] == "dense"


def test_a_known_answer_needs_no_times_for_a_dense_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMES, "sparse[impl=auto,density=0.25]", 50.0)
    timer, cache = Known(), Cache(None, {})
    for _ in range(2):
        net = nn.Sequential(nn.Conv2d(4, 4, 3))
        _, record = convert(net, Sparse(), example=quarter(), selector=Selector(timer, cache, "eager", training=True))
        assert type(net[0]) is nn.Conv2d and not record.replaced
    assert len(timer.calls) == 2  # the calibration and the comparison of the first


def test_another_density_is_another_question() -> None:
    timer, cache = Known(), Cache(None, {})
    selector = Selector(timer, cache, "eager", training=True)
    net, record = convert(nn.Sequential(nn.Conv2d(4, 4, 3)), Sparse(), example=quarter(), selector=selector)
    assert isinstance(net[0], SparseAdaptiveConv2d) and len(record.replaced) == 1
    with pytest.raises(KeyError, match=r"density=1\.00"):  # so it is timed
        convert(nn.Sequential(nn.Conv2d(4, 4, 3)), Sparse(), example=torch.ones(1, 4, 4, 4), selector=selector)


def test_what_kernels_do_not_support_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "is_supported", lambda x: False)
    layer = SparseAdaptiveConv2d(4, 4, 3)
    with pytest.raises(UnsupportedError, match="do not support"):
        candidates(layer, call_of(layer, quarter()), Selector(Known(), Cache(None, {}), "eager", True))
