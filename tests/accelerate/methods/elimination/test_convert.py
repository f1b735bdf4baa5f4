"""What a conversion chooses, and what it writes down."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate import configuration, convert
from lamina.accelerate.methods.elimination import Eliminated, search
from lamina.accelerate.methods.elimination import convert as cell
from lamina.accelerate.methods.elimination.table import tap_prefixes
from lamina.errors import UnsupportedError, UsageError
from lamina.spec import Method


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("eliminated", Eliminated(keep=0.5)),
        ("eliminated[keep=0.25,recovery=none]", Eliminated(keep=0.25, recovery="none")),
        ("eliminated[alpha=0.3,by=tap,group=8,align=64]", Eliminated(alpha=0.3, by="tap", group=8, align=64)),
    ],
)
def test_a_written_method_is_its_configuration(text: str, config: Eliminated) -> None:
    assert configuration(Method.parse(text)) == config
    _, record = convert(nn.Sequential(nn.Linear(8, 6)), config)
    assert configuration(Method.parse(record.method)) == config


def test_kept_weights_are_scaled_by_what_went() -> None:
    dense = nn.Linear(12, 5)
    for recovery, factor in (("scale", 12 / 3), ("none", 1.0)):
        layer: Any = cell.replace(dense, Eliminated(keep=0.25, recovery=recovery))
        assert torch.equal(layer.weight, dense.weight[:, layer.index] * factor)
        assert torch.equal(layer.bias, dense.bias)


def test_the_search_decides_what_stays() -> None:
    dense = nn.Conv2d(8, 5, 3)
    with torch.no_grad():
        dense.weight[:, 4:] = 2 * dense.weight[:, :4]
    layer: Any = cell.replace(dense, Eliminated(alpha=0.999))
    assert layer.index.tolist() == [0, 1, 2, 3] and layer.keep == 0.5
    expected, _ = search.select(search.synapse_vectors(dense.weight), keep=0.75)
    assert cell.choose(dense, Eliminated(keep=0.75)).tolist() == expected.tolist()
    taps: Any = cell.replace(dense, Eliminated(alpha=0.999, by="tap"))
    assert len(taps.index) == 36 and taps.index.tolist() == sorted(taps.index.tolist(), key=lambda k: (k % 9, k))
    assert taps.weight.shape == (5, 36) and set((taps.index // 9).tolist()) == {0, 1, 2, 3}


def test_a_choice_comes_with_its_threshold() -> None:
    layer = nn.Linear(12, 6)
    index, found = cell.retained(layer, Eliminated(keep=0.5))
    assert found is not None and torch.equal(index, cell.choose(layer, Eliminated(keep=0.5)))
    assert torch.equal(index, found.kept(6))
    correlations = search.correlation(search.synapse_vectors(layer.weight))
    assert found.representatives == len(search.retain(correlations, found.alpha)) <= 6
    everything, none = cell.retained(layer, Eliminated(keep=1.0))
    assert none is None and everything.tolist() == list(range(12))


def test_groups_and_alignment() -> None:
    dense = nn.Conv2d(32, 6, 1)
    index = cell.choose(dense, Eliminated(keep=0.4, group=4, align=8)).tolist()
    assert len(index) == 16
    assert all(index[k : k + 4] == list(range(index[k], index[k] + 4)) and index[k] % 4 == 0 for k in range(0, 16, 4))
    layer: Any = cell.replace(dense, Eliminated(keep=0.4, group=4, align=8))
    assert layer.at.run >= 4


def test_taps_may_read_prefixes_of_one_order() -> None:
    dense = nn.Conv2d(16, 6, 3)
    free = cell.choose(dense, Eliminated(keep=0.5, by="tap"))
    index = cell.choose(dense, Eliminated(keep=0.5, by="tap", order="prefix", align=4))
    expected = tap_prefixes(free.tolist(), 16, 9, 4)
    assert index.tolist() == expected.index()
    model, _ = convert(nn.Sequential(dense, nn.Flatten(), nn.Linear(6, 3)), Eliminated(by="tap", order="prefix"))
    assert model(torch.randn(2, 16, 3, 3)).shape == (2, 3)


@pytest.mark.parametrize(
    ("dense", "config"),
    [
        (nn.Linear(35, 6), Eliminated(keep=0.4)),
        (nn.Linear(32, 6), Eliminated(keep=0.3, group=4, align=8)),
        (nn.Conv2d(16, 6, 3), Eliminated(keep=0.5, by="tap")),
        (nn.Conv2d(16, 6, 3), Eliminated(keep=0.5, by="tap", order="prefix", align=4)),
        (nn.Linear(8, 6), Eliminated(keep=1.0)),
    ],
)
def test_inputs_at_equal_distances_need_no_search(
    monkeypatch: pytest.MonkeyPatch, dense: Any, config: Eliminated
) -> None:
    searched: Any = cell.replace(dense, config)
    monkeypatch.setattr(search, "select", None)
    layer: Any = cell.replace(dense, replace(config, select="even"))
    assert layer.weight.shape[0] == searched.weight.shape[0]
    if config.order == "sorted":  # prefixes are of the nearest lengths
        assert layer.index.shape == searched.index.shape
    assert len(set(layer.index.tolist())) == len(layer.index)
    assert config.keep == 1.0 or layer.index.tolist() != list(range(len(layer.index)))  # no prefix, which a view reads


def test_variance_scales_by_the_root() -> None:
    dense = nn.Linear(64, 256, bias=False)
    layer: Any = cell.replace(dense, Eliminated(keep=0.25, recovery="variance", select="even"))
    assert layer.index.tolist() == [*range(0, 64, 4)]
    assert torch.allclose(layer.weight, 2 * dense.weight[:, ::4])
    x = torch.randn(2000, 64)
    assert layer(x).var().item() == pytest.approx(dense(x).var().item(), rel=0.2)


def test_thresholds_do_not_go_with_equal_distances() -> None:
    with pytest.raises(UsageError, match="expected a keep ratio"):
        Eliminated(alpha=0.5, select="even")
    with pytest.raises(UsageError, match="select"):
        Eliminated(select="odd")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="does not divide its 10 inputs"):
        cell.replace(nn.Linear(10, 4), Eliminated(group=3, select="even"))


def test_both_directions_of_an_lstm_choose_together() -> None:
    dense = nn.LSTM(10, 3, bidirectional=True)
    weight = torch.cat([dense.weight_ih_l0, dense.weight_ih_l0_reverse]).detach()
    expected, _ = search.select(weight.mT, keep=0.5)
    layer: Any = cell.replace(dense, Eliminated(keep=0.5, recovery="none"))
    assert layer.index.tolist() == expected.tolist()
    assert torch.equal(layer.weight_ih_l0_reverse, dense.weight_ih_l0_reverse[:, expected])
    assert torch.equal(layer.weight_hh_l0, dense.weight_hh_l0)


def test_lstms_are_made_without_random_numbers() -> None:
    dense, state = nn.LSTM(8, 6, 2, bidirectional=True), torch.get_rng_state()
    layer: Any = cell.replace(dense, Eliminated(keep=0.5))
    again = layer.to_dense()
    assert torch.equal(torch.get_rng_state(), state)
    x = torch.randn(5, 2, 8)
    torch.testing.assert_close(again(x)[0], layer(x)[0])


def test_packed_sequences_are_refused() -> None:
    layer: Any = cell.replace(nn.LSTM(8, 4), Eliminated(keep=0.5))
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 8), torch.randn(2, 8)])
    with pytest.raises(UnsupportedError, match="PackedSequence: pad the sequences .pad_packed_sequence., or keep"):
        layer(packed)


def test_the_same_weights_give_the_same_choice() -> None:
    model = nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    first, second = (convert(copy.deepcopy(model), Eliminated(keep=0.5))[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_weights_that_are_no_numbers_are_told_with_their_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 2] = float("nan")
    with pytest.raises(UsageError, match="1: synapse vectors: expected finite weights"):
        convert(model, Eliminated(keep=0.5))


def test_frozen_layers_stay_frozen_and_others_train() -> None:
    dense = nn.Conv1d(6, 4, 3).eval().requires_grad_(False)
    layer = cell.replace(dense, Eliminated(keep=0.5))
    assert not layer.training and not any(parameter.requires_grad for parameter in layer.parameters())
    model, _ = convert(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), Eliminated(keep=0.5))
    x, y = torch.randn(16, 6), torch.randn(16, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        loss = (model(x) - y).square().mean()
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_layers_without_inputs_or_outputs_are_skipped() -> None:
    layers = {"a": nn.Linear(0, 8), "b": nn.Conv2d(0, 8, 3), "c": nn.Linear(8, 0)}
    _, record = convert(nn.ModuleDict(layers), Eliminated())
    reasons = {one.layer: one.refusal for one in record.skipped}
    assert reasons == dict.fromkeys("ab", "it has zero inputs") | {"c": "it has zero outputs"}


@pytest.mark.parametrize("normed", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_a_weight_that_is_computed_is_refused(normed: Any) -> None:
    refused, plain = cell.refusal(normed(nn.Linear(6, 4))), cell.refusal(nn.Linear(6, 4))
    assert refused and plain is None
