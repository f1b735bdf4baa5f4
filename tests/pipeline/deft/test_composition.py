"""Compositions: variants recovered from calibration data, put together and folded, and what a layer's outputs lose."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lamina import recipes
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.convert import build, choose
from lamina.accelerate.methods.elimination.recovery import Moments, observe, recover
from lamina.build.models import create
from lamina.errors import UsageError
from lamina.pipeline import find
from lamina.pipeline.deft.composition import by_contribution, candidates, compose, flattened, foldable, output_error


@pytest.fixture
def lenet() -> nn.Module:
    return create("lenet5", 10).eval()


@pytest.fixture
def batches() -> list[torch.Tensor]:
    """More rows than any layer has inputs: no fit is exact, so no error is only rounding."""
    return [torch.randn(96, 1, 28, 28) for _ in range(3)]


def test_every_layer_with_inputs_to_spare_has_its_variants(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    found = candidates(lenet, Eliminated(recovery="least_squares"), [0.25, 0.5, 0.5], batches)
    assert found.refusals == {"features.0": "it has one input"}
    names = ["features.3", "classifier.0", "classifier.2", "classifier.4"]
    assert found.shares == {name: [0.5, 0.25] for name in names}
    one = found.variants["classifier.2"][0.25]
    assert (one.kept, one.total) == (30, 120)
    alphas = [v.alpha for row in found.variants.values() for v in row.values() if v.alpha is not None]
    assert all(0 < alpha <= 1 for alpha in alphas)
    assert found.variants["classifier.2"][0.5].error < one.error  # type: ignore[operator]


@pytest.mark.parametrize("recovery", ["none", "scale", "bias", "least_squares"])
@pytest.mark.parametrize("layer", ["features.3", "classifier.2"])
def test_the_error_is_that_of_the_outputs_themselves(
    lenet: nn.Module, batches: list[torch.Tensor], recovery: Any, layer: str
) -> None:
    found = candidates(lenet, Eliminated(recovery=recovery), [0.5], batches)
    dense, one = lenet.get_submodule(layer), found.variants[layer][0.5]
    seen: list[torch.Tensor] = []
    dense.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].double()))
    with torch.no_grad():
        for batch in batches:
            lenet(batch)
        dense, small, x = dense.double(), copy.deepcopy(one.layer).double(), torch.cat(seen)
        expected = float(((dense(x) - small(x)).square().sum() / dense(x).square().sum()).sqrt())
    assert expected > 1e-3
    assert one.error == pytest.approx(expected, rel=1e-9)


def test_an_error_that_float64_does_not_resolve_is_0() -> None:
    dense = nn.Linear(120, 8).double()
    x = torch.randn(40, 120)
    moments = Moments.of(x)
    unseen = torch.linalg.qr(x.double().mT, "complete").Q[:, 40:]  # what no row has a part in
    for seen, expected in ((0.0, 0.0), (1e-3, 1e-3), (1e-12, 1e-12)):
        other = copy.deepcopy(dense)
        with torch.no_grad():
            other.weight.mul_(1 + seen)
            other.bias.mul_(1 + seen)
            if not seen:  # the outputs stay, though every weight differs: all terms of the error cancel
                other.weight.add_(torch.randn(8, 80).double() @ unseen.mT)
        assert output_error(dense, other, moments) == pytest.approx(expected, rel=1e-3, abs=0)


def test_least_squares_loses_the_least(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    recoveries: tuple[Any, ...] = ("least_squares", "bias", "none")
    rows = [candidates(lenet, Eliminated(recovery=one), [0.5], batches).variants for one in recoveries]
    for name in rows[0]:
        errors = [row[name][0.5].error for row in rows]
        assert errors[0] < errors[1] <= errors[2], name  # type: ignore[operator]


@pytest.mark.parametrize("group", [1, 4])
def test_inputs_that_contribute_nothing_go_first(group: int) -> None:
    dense = nn.Linear(16, 6)
    x = torch.randn(50, 16) + 0.5
    x[:, 4:12] *= 1e-6  # what hardly ever fires, however its weights correlate
    moments = observe(nn.Sequential(dense), {"0": dense}, [x])["0"]
    asked = Eliminated(keep=0.5, group=group)
    assert by_contribution(dense, asked, moments).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    groups = {"0": group}
    found = candidates(nn.Sequential(dense), Eliminated(recovery="none"), [0.5], [x], groups).variants["0"][0.5]
    assert found.alpha is None and found.error < 1e-5  # type: ignore[operator]


def test_what_loses_less_is_taken(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    config = Eliminated(recovery="least_squares", keep=0.5)
    found = candidates(lenet, config, [0.5], batches).variants
    for name, row in found.items():
        dense = lenet.get_submodule(name)
        moments = observe(lenet, {name: dense}, batches)[name]
        errors = []
        for index in (choose(dense, config), by_contribution(dense, config, moments)):
            layer = build(dense, index, config)
            recover(layer, dense, moments, config)
            errors.append(output_error(dense, layer, moments))
        assert row[0.5].error == min(errors), name  # type: ignore[type-var]


def test_a_layer_compared_with_itself_loses_nothing(batches: list[torch.Tensor]) -> None:
    dense = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False))
    moments = observe(dense, {"0": dense[0]}, batches)["0"]
    assert output_error(dense[0], dense[0], moments) == 0
    silent = nn.Conv2d(1, 4, 3, bias=False)
    nn.init.zeros_(silent.weight)
    assert output_error(silent, silent, moments) == 0


@pytest.mark.parametrize("written", [False, True])
def test_a_composition_computes_what_its_layers_do(batches: list[torch.Tensor], written: bool) -> None:
    target, _ = find(str(recipes.find("lenet5").path) if written else "lenet5")
    dense = target.make(None).eval()
    assert foldable(dense) is None
    found = candidates(dense, Eliminated(recovery="least_squares"), [0.5], batches)
    choice = dict.fromkeys(found.variants, 0.5)
    whole, _ = compose(dense, found.variants, choice, folding=False)
    small, folded = compose(dense, found.variants, choice)
    x = torch.randn(4, 1, 28, 28).double()
    torch.testing.assert_close(small.double()(x), whole.double()(x), rtol=1e-9, atol=1e-9)
    names = dict(dense.named_modules())
    assert len(folded) == 4 and all(one.producer in names and set(one.consumers) <= set(names) for one in folded)
    count = [sum(p.numel() for p in model.parameters()) for model in (dense, whole, small)]
    assert count[0] > count[1] > count[2]


def test_pixels_of_one_channel_go_together(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    before = copy.deepcopy(lenet)
    assert flattened(lenet) == {"classifier.0": 25}
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), lenet.parameters(), strict=True))
    found = candidates(lenet, Eliminated(recovery="least_squares"), [0.5], batches, flattened(lenet))
    index = found.variants["classifier.0"][0.5].layer.get_buffer("index")
    assert torch.equal(index.view(8, 25) - index.view(8, 25)[:, :1], torch.arange(25).expand(8, 25))
    small, folded = compose(lenet, found.variants, {"classifier.0": 0.5})
    assert [(one.producer, one.live, one.plain) for one in folded] == [("features.3", 8, ("classifier.0",))]
    assert type(small.get_submodule("classifier.0")) is nn.Linear
    assert flattened(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == {}


def test_layers_left_whole_stay_as_they_were(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    found = candidates(lenet, Eliminated(), [0.5], batches)
    same, folded = compose(lenet, found.variants, dict.fromkeys(found.variants, 1.0))
    assert folded == ()
    assert torch.equal(same(batches[0]), lenet(batches[0]))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(x) if x.sum() > 0 else self.first(x)
        return y


def test_what_cannot_be_traced_or_reached_is_said() -> None:
    network = Branching().eval()
    assert "torch.fx" in str(foldable(network))
    found = candidates(network, Eliminated(recovery="bias"), [0.5], [torch.ones(3, 6)])
    assert found.refusals == {"first": "the calibration batches did not reach it"}
    small, folded = compose(network, found.variants, {"second": 0.5}, folding=False)
    assert folded == () and small(torch.ones(1, 6)).shape == (1, 6)


def test_shared_weights_stay_and_a_network_of_nothing_else_is_refused() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    network[2].weight = network[0].weight
    with pytest.raises(UsageError, match="0: its weights are shared with another layer"):
        candidates(network, Eliminated(), [0.5], [torch.ones(1, 4)])


def test_a_threshold_keeps_the_representatives(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    with torch.no_grad():  # inputs 6 to 11 are represented by 0 to 5
        lenet.get_parameter("classifier.4.weight")[:, 6:12] = 2 * lenet.get_parameter("classifier.4.weight")[:, :6]
    config = Eliminated(recovery="least_squares")
    found = candidates(lenet, config, [], batches, alphas=[1.0, 0.999], patterns=["classifier.4"]).variants
    (row,) = found.values()
    ((ratio, one),) = row.items()
    assert (one.kept, one.total, one.alpha) == (78, 84, 1.0) and ratio == 78 / 84
    expected = choose(lenet.get_submodule("classifier.4"), Eliminated(alpha=0.999))
    assert one.layer.get_buffer("index").tolist() == expected.tolist()


def test_layers_by_pattern(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    config = Eliminated(recovery="least_squares")
    found = candidates(lenet, config, [0.5], batches, patterns=["features.*", "classifier.2"])
    assert list(found.variants) == ["features.3", "classifier.2"]
    assert found.refusals["classifier.0"] == "it was not selected"
    with pytest.raises(UsageError, match="'clasifier.0' matches no layer.*classifier.0"):
        candidates(lenet, config, [0.5], batches, patterns=["clasifier.0"])


def test_progress_counts_layers(lenet: nn.Module, batches: list[torch.Tensor]) -> None:
    seen: list[Any] = []
    candidates(lenet, Eliminated(recovery="none"), [0.5], batches, watch=seen.append)
    assert [(one.done, one.total) for one in seen] == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_layers_that_do_not_fit_into_memory_are_left_out(
    lenet: nn.Module, batches: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.measure.free_bytes", lambda device: 8 * (4 * 150**2 + 120**2 + 84**2))
    found = candidates(lenet, Eliminated(recovery="least_squares"), [0.5], batches)
    assert list(found.variants) == ["features.3", "classifier.2", "classifier.4"]
    assert found.refusals["classifier.0"].startswith("products of its 400 inputs, with those of smaller layers, need ")


def test_a_network_without_a_layer_that_fits_is_refused(
    lenet: nn.Module, batches: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.measure.free_bytes", lambda device: 1000)
    with pytest.raises(UsageError, match=r"classifier.4: products of its 84 inputs"):
        candidates(lenet, Eliminated(recovery="least_squares"), [0.5], batches)
