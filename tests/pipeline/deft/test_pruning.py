"""Other ways to prune, to compare with: as far as ours, and trained on."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from lamina.accelerate import convert
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.network import fold
from lamina.build.models import create
from lamina.errors import MissingError, UnsupportedError, UsageError
from lamina.pipeline.deft import pruning
from lamina.pipeline.deft.pruning import multiplications, pruned, require, tuned

X = torch.zeros(1, 1, 28, 28)


@pytest.fixture
def lenet() -> nn.Module:
    return create("lenet5", 10).eval()


def count(model: nn.Module, name: str) -> int:
    return int(model.get_parameter(f"{name}.weight").count_nonzero())


WEIGHTED = ("features.0", "features.3", "classifier.0", "classifier.2", "classifier.4")


@pytest.fixture
def ours(lenet: nn.Module) -> nn.Module:
    model, record = convert(copy.deepcopy(lenet), Eliminated(keep=0.3))
    assert record.replaced
    return fold(model)[0]


def test_each_layer_loses_its_smallest_weights_down_to_our_number(lenet: nn.Module, ours: nn.Module) -> None:
    before = copy.deepcopy(lenet.state_dict())
    model, finish = pruned("magnitude", lenet, X, ours)
    finish()
    assert [count(model, name) for name in WEIGHTED] == [ours.get_parameter(f"{n}.weight").numel() for n in WEIGHTED]
    for name in WEIGHTED:
        after, full = model.get_parameter(f"{name}.weight"), before[f"{name}.weight"]
        assert torch.equal(after[after != 0], full[after != 0])
        assert full[after != 0].abs().min() >= full[after == 0].abs().max()
    assert all(torch.equal(before[name], tensor) for name, tensor in lenet.state_dict().items())
    assert model.state_dict().keys() == before.keys()


def test_zeros_stay_zeros_in_training(lenet: nn.Module, ours: nn.Module) -> None:
    model, finish = pruned("magnitude", lenet, X, ours)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    zeros = {name: model.get_submodule(name).weight == 0 for name in WEIGHTED}
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 1, 28, 28)).square().sum().backward()
        optimizer.step()
    finish()
    assert all((model.get_parameter(f"{name}.weight")[zeros[name]] == 0).all() for name in WEIGHTED)
    assert not torch.equal(model.get_parameter("classifier.4.weight"), lenet.get_parameter("classifier.4.weight"))


def test_weights_leave_in_equal_parts_before_each_epoch(lenet: nn.Module, ours: nn.Module) -> None:
    zeros: list[list[torch.Tensor]] = []

    def tune(model: nn.Module, epochs: int) -> None:
        zeros.append([model.get_submodule(name).weight == 0 for name in WEIGHTED])
        assert epochs == 1
        with torch.no_grad():  # what is left is trained, so that other weights are the smallest
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))

    model = tuned("iterative-magnitude", lenet, X, ours, tune, 3)
    kept = [ours.get_parameter(f"{name}.weight").numel() for name in WEIGHTED]
    assert [count(model, name) for name in WEIGHTED] == kept
    removed = [lenet.get_parameter(f"{n}.weight").numel() - left for n, left in zip(WEIGHTED, kept, strict=True)]
    assert [[int(zero.sum()) for zero in each] for each in zeros] == [
        [round(part * one) for one in removed] for part in (1 / 3, 2 / 3, 1)
    ]
    for before, after in pairwise(zeros):
        assert all(bool((late | ~early).all()) for early, late in zip(before, after, strict=True))
    assert model.state_dict().keys() == lenet.state_dict().keys()


def test_without_epochs_all_is_pruned_at_once(lenet: nn.Module, ours: nn.Module) -> None:
    once, iterative = (
        tuned(name, lenet, X, ours, lambda model, epochs: None, 0) for name in ("magnitude", "iterative-magnitude")
    )
    for name, tensor in once.state_dict().items():
        assert torch.equal(tensor, iterative.state_dict()[name])


def test_the_dense_network_is_tuned_as_long_and_keeps_all(lenet: nn.Module, ours: nn.Module) -> None:
    told: list[int] = []
    model = tuned("dense", lenet, X, ours, lambda model, epochs: told.append(epochs), 4)
    assert told == [4] and model is not lenet
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in lenet.state_dict().items())


def test_channels_leave_with_all_that_depends_on_them(lenet: nn.Module, ours: nn.Module) -> None:
    pytest.importorskip("torch_pruning")
    model, finish = pruned("channels", lenet, X, ours)
    finish()
    asked = multiplications(ours, X)
    assert asked <= multiplications(model, X) < 2 * asked < multiplications(lenet, X)
    assert model(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert model.get_submodule("classifier.0").out_features < 120
    assert model.get_submodule("classifier.2").in_features == model.get_submodule("classifier.0").out_features
    assert lenet.get_submodule("classifier.0").out_features == 120


def test_channels_of_the_smallest_norm_leave_in_whole_tiles() -> None:
    """The sum of absolute values decides, not that of squares; what is left is a multiple of eight channels."""
    pytest.importorskip("torch_pruning")
    torch.manual_seed(0)
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2)
    dense = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), *last)
    with torch.no_grad():
        weight = dense[0].weight
        weight.copy_(torch.full_like(weight, 0.1))
        weight[::2] = 0.0
        weight[::2, 0, 0, 0] = 0.8  # less in absolute values than nine times 0.1, more in squares
    ours = copy.deepcopy(dense)
    ours[0], ours[2] = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 64, 3)
    model, _ = pruned("channels", dense, X, ours)
    kept = model.get_parameter("0.weight")
    assert len(kept) % 8 == 0 and len(kept) < 32 and model.get_submodule("2").in_channels == len(kept)
    strong = kept[kept[:, 0, 0, 0] != 0.8]
    assert len(strong) == 16 and model(X).shape == (1, 2)


def test_multiplications_are_those_of_the_sizes(lenet: nn.Module) -> None:
    expected = 25 * 6 * 28 * 28 + 6 * 25 * 16 * 10 * 10 + 400 * 120 + 120 * 84 + 84 * 10
    assert multiplications(lenet, X) == expected
    assert multiplications(lenet, X.expand(3, -1, -1, -1)) == 3 * expected


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "find_spec", lambda name: None)
    require(["magnitude"])
    with pytest.raises(MissingError, match="pip install torch-pruning"):
        require(["magnitude", "channels"])


def test_nothing_to_prune_is_said() -> None:
    with pytest.raises(UsageError, match="expected a network with linear layers or convolutions"):
        pruned("magnitude", nn.Sequential(nn.ReLU()), X, nn.ReLU())


def test_multiplications_by_the_projections_of_attention_are_counted() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 1).eval()
    projections, mlp = 4 * 16 * 16, 2 * 16 * 32
    assert multiplications(encoder, torch.randn(3, 5, 16)) == 3 * 5 * (projections + mlp)
    assert type(encoder.layers[0].self_attn) is nn.MultiheadAttention


def test_layers_that_compute_their_weight_stay() -> None:
    dense = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))
    ours, record = convert(copy.deepcopy(dense), Eliminated(keep=0.5))
    assert [one.layer for one in record.replaced] == ["2"]
    model, finish = pruned("magnitude", dense, torch.zeros(2, 6), ours)
    finish()
    torch.testing.assert_close(model[0].weight, dense[0].weight)
    assert count(model, "2") == 3 * 4


def test_a_network_whose_channels_cannot_be_followed_is_refused() -> None:
    pytest.importorskip("torch_pruning")

    class Fixed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self[0](x)
            return self[1](x.view(len(x), 32, 36).mean(2))  # type: ignore[no-any-return]

    dense = Fixed(nn.Conv2d(1, 32, 3), nn.Linear(32, 2))
    ours = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 2))
    with pytest.raises(UnsupportedError, match="cannot prune the channels of this network"):
        pruned("channels", dense, X[:, :, :8, :8], ours)
