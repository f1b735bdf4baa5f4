"""A folded network computes what its masked dense twin does, in float64."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.network import fold
from lamina.accelerate.methods.elimination.nn import EliminatedConv2d, EliminatedLinear
from lamina.accelerate.methods.elimination.table import Prefixes, tap_prefixes
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.errors import UsageError


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(), nn.Linear(64, 20), nn.Sigmoid(), nn.Linear(20, 10), nn.BatchNorm1d(10), nn.Linear(10, 4),
    )  # fmt: skip


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 9, 3), nn.Conv2d(9, 8, 2)
        self.third, self.last = nn.Linear(32, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = torch.flatten(self.second(x).relu(), 1)
        return self.last(torch.tanh(self.third(x)))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act = nn.Conv2d(3, 14, 3), nn.ReLU()
        self.left, self.right = nn.Conv2d(14, 5, 1), nn.Conv2d(14, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        return self.left(x) + self.right(x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


def masked(model: nn.Module) -> nn.Module:
    """The dense network with zeros where weights went."""
    twin = copy.deepcopy(model)
    for name, module in model.named_modules():
        if hasattr(module, "to_dense"):
            dense: Any = module
            parent, _, last = name.rpartition(".")
            setattr(twin.get_submodule(parent), last, dense.to_dense())
    return twin


def lived_in(model: nn.Module) -> nn.Module:
    """With norms that do something."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight), nn.init.normal_(module.bias)
            module.running_mean, module.running_var = torch.randn(module.num_features), torch.rand(module.num_features)
    return model.double().eval()


@pytest.mark.parametrize(
    "options",
    [{}, {"order": "swap"}, {"by": "tap"}, {"by": "tap", "order": "prefix"}, {"by": "tap", "order": "swap"}],
    ids=str,
)
@pytest.mark.parametrize("make", [chain, Functions, Branches, Residual])
def test_folded_networks_compute_the_same(make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    model, _ = convert(lived_in(make()), Eliminated(keep=0.5, impl="gather", **options))
    x = torch.randn(2, 6 if make is Residual else 2 if make is Functions else 3, 9, 9, dtype=torch.float64)
    twin = masked(model)
    expected = twin(x)
    before = sum(len(layer.weight) for layer in model.modules() if hasattr(layer, "weight"))
    folded, record = fold(model)
    torch.testing.assert_close(folded(x), expected, rtol=1e-10, atol=1e-12)
    # A flattened reader may need some pixel of every channel, one by tap some tap.
    if "by" not in options:
        assert len(record) >= {chain: 3, Functions: 2, Branches: 1, Residual: 1}[make]
        assert sum(len(layer.weight) for layer in folded.modules() if hasattr(layer, "weight")) < before
    assert all(one.live <= one.outputs for one in record)
    assert fold(folded)[1] == ()


def test_readers_of_channels_become_dense_and_their_producers_smaller() -> None:
    model, _ = convert(lived_in(chain()), Eliminated(keep=0.5), lambda name, _: name in ["4", "12", "14"])
    folded, record = fold(model)
    assert [(one.producer, one.outputs, one.live, one.plain) for one in record] == [
        ("0", 12, 6, ("4",)), ("10", 20, 10, ("12",)), ("12", 10, 5, ("14",)),
    ]  # fmt: skip
    kinds = [type(module) for module in folded]  # type: ignore[attr-defined]
    assert EliminatedConv2d not in kinds and EliminatedLinear not in kinds
    assert folded[0].out_channels == folded[1].num_features == folded[4].in_channels == 6  # type: ignore[index]


def test_a_reader_of_some_pixels_of_a_channel_keeps_an_index() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 5)).double()
    model[2] = EliminatedLinear.from_dense(model[2], [2, 3, 9, 11])
    x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    expected = masked(model)(x)
    folded, record = fold(model)
    assert record[0].live == 2 and record[0].plain == ()
    assert folded[2].index.tolist() == [2, 3, 5, 7]  # type: ignore[index, union-attr]
    torch.testing.assert_close(folded(x), expected)


def test_what_all_branches_read_comes_first() -> None:
    model = Branches().double()
    model.left = EliminatedConv2d.from_dense(model.left, [1, 3, 5])  # type: ignore[assignment]
    model.right = EliminatedConv2d.from_dense(model.right, [1, 3, 5, 7, 9])  # type: ignore[assignment]
    x = torch.randn(1, 3, 6, 6, dtype=torch.float64)
    expected = masked(model)(x)
    folded, record = fold(model)
    assert record[0].live == 5 and record[0].plain == ("right",)
    assert folded.left.at.prefix and isinstance(folded.right, nn.Conv2d)
    torch.testing.assert_close(folded(x), expected)


def test_what_others_read_stays() -> None:
    shared = nn.Linear(6, 6)
    for model in (
        nn.Sequential(nn.Conv2d(2, 6, 3), nn.Softmax(1), nn.Conv2d(6, 4, 1)),
        nn.Sequential(nn.Conv2d(2, 6, 3), nn.PixelShuffle(1), nn.Conv2d(6, 4, 1)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(nn.Linear(4, 6), nn.MaxPool1d(1), nn.Linear(6, 4)),
        nn.Sequential(nn.Conv2d(2, 6, 3), nn.Linear(6, 6)),
    ):
        converted, _ = convert(model, Eliminated(keep=0.5))
        assert fold(converted)[1] == ()


def test_taps_read_prefixes_of_what_their_producer_makes() -> None:
    model = nn.Sequential(nn.Conv2d(2, 12, 3), nn.ReLU(), nn.Conv2d(12, 6, 3, padding=1)).double()
    kept = [channel * 9 + tap for channel in (3, 5, 8, 10) for tap in range(9) if (channel, tap) != (5, 0)]
    prefixes = tap_prefixes(kept, 12, 9, align=2)
    model[2] = EliminatedConv2d.from_dense(model[2], prefixes.index(), by="tap")
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    expected = masked(model)(x)
    folded, record = fold(model)
    assert record[0].live == 4 and record[0].plain == ("2",)  # an aligned prefix is all of the four
    torch.testing.assert_close(folded(x), expected)
    counts = tuple(2 + 2 * (tap % 2) for tap in range(9))
    model[2] = EliminatedConv2d.from_dense(model[2], Prefixes((2, 0, 3, 1), counts).index(), by="tap")
    expected = masked(model)(x)
    folded, record = fold(model)
    assert record[0].live == 4 and folded[2].at.run == 2  # type: ignore[index, union-attr]
    assert folded[2].index.tolist() == Prefixes((0, 1, 2, 3), counts).index()  # type: ignore[index, union-attr]
    torch.testing.assert_close(folded(x), expected)


def test_layers_with_hooks_stay() -> None:
    model, _ = convert(nn.Sequential(nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 3)), Eliminated(keep=0.5))
    for layer in model:  # type: ignore[attr-defined]
        for hook in (layer.register_forward_hook, layer.register_full_backward_hook):
            handle = hook(lambda *_: None)
            assert fold(model)[1] == ()
            handle.remove()
    assert len(fold(model)[1]) == 1


def test_a_model_that_decides_as_it_runs_is_refused() -> None:
    class Undecided(Branches):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(UsageError, match=r"torch.fx cannot trace .* fold its sequential parts"):
        fold(Undecided())


def test_layers_of_other_methods_are_looked_at_from_outside() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    model, _ = convert(model, Eliminated(keep=0.5), lambda name, _: name == "2")
    model, _ = convert(model, WeightOnly("e4m3"), lambda name, _: name == "4")
    x = torch.randn(5, 6, dtype=torch.float64)
    expected = model(x)
    model, folded = fold(model)
    assert [(one.producer, one.live) for one in folded] == [("0", 4)]
    torch.testing.assert_close(model(x), expected)


def test_folded_networks_train_and_are_saved() -> None:
    first, second = (
        fold(convert(chain(), Eliminated(keep=0.5), lambda name, _: name in ["4", "12", "14"])[0])[0] for _ in range(2)
    )
    first(torch.randn(4, 3, 9, 9)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in first.parameters())
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 3, 9, 9)
    assert torch.equal(second.eval()(x), first.eval()(x))


def test_whole_channels_of_a_flattened_image_go_in_groups() -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))
    converted, _ = convert(model, Eliminated(keep=0.5, group=4), lambda name, _: name == "3")
    x = torch.randn(2, 1, 4, 4)
    expected = masked(converted)(x)
    folded, record = fold(converted)
    assert (record[0].live, record[0].plain) == (3, ("3",))
    torch.testing.assert_close(folded(x), expected)


class Averaged(nn.Module):
    """Keeps a running mean of what it computes in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.last(x - self.mean)


def test_buffers_that_a_network_sets_survive_tracing() -> None:
    model, _ = convert(Averaged(), Eliminated(keep=0.5), lambda name, _: name == "last")
    model, _ = fold(model)
    assert isinstance(model.mean, Tensor) and list(model.state_dict()) == list(copy.deepcopy(model).state_dict())


def test_parametrized_producers_are_left_alone() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))
    model, _ = convert(model, Eliminated(keep=0.5), lambda name, _: name == "2")
    expected = model(x := torch.randn(4, 6))
    model, folded = fold(model)
    assert folded == ()
    torch.testing.assert_close(model(x), expected)


class Gained(nn.Linear):
    """Has more per output than a weight and a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.rand(outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.gain * self.weight, self.bias)


def test_outputs_of_subclasses_stay() -> None:
    model = nn.Sequential(Gained(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    model, record = convert(model, Eliminated(keep=0.5))
    assert [one.layer for one in record.replaced] == ["2"]
    expected = model(x := torch.randn(4, 6).double())
    model, folded = fold(model)
    assert folded == ()
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("groups", [2, 8])
def test_outputs_of_grouped_convolutions_stay(groups: int) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=groups), nn.ReLU(), nn.Conv2d(8, 4, 1)).double()
    model, _ = convert(model, Eliminated(keep=0.5))
    expected = model(x := torch.randn(2, 8, 5, 5).double())
    model, folded = fold(model)
    assert folded == ()
    torch.testing.assert_close(model(x), expected)


class Tied(nn.Module):
    """Reads the weight of a layer outside of its call too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))) + F.linear(x, self.first.weight[:6])


def test_producers_whose_weights_are_read_elsewhere_stay() -> None:
    model, _ = convert(Tied().double(), Eliminated(keep=0.5), lambda name, _: name == "second")
    expected = model(x := torch.randn(2, 6).double())
    model, folded = fold(model)
    assert folded == ()
    torch.testing.assert_close(model(x), expected)


class Headed(nn.Module):
    """Reads ``stem`` by ``head`` alone in all calls, and ``body`` by ``tail`` in some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)
        self.body, self.tail, self.aux = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.head(torch.relu(self.norm(self.stem(x)))))  # type: ignore[no-any-return]


class Either(Headed):
    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.aux(x) if self.training else self.tail(x)  # type: ignore[no-any-return]


class Both(Headed):
    def forward(self, x: Tensor) -> Any:
        x = self.features(x)
        return (self.tail(x), self.aux(x)) if self.training else self.tail(x)


class Masked(Headed):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.features(x)
        return self.tail(x if mask is None else x * mask)  # type: ignore[no-any-return]


class Given(Headed):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.features(x) if mask is None else self.head(self.stem(x)).repeat(1, 2)[:, :8] * mask
        return self.tail(x)  # type: ignore[no-any-return]


class With(Headed):
    def forward(self, x: Tensor, more: bool = False) -> Any:
        x = self.features(x)
        return (self.tail(x), x.mean(1)) if more else self.tail(x)


class Without(Headed):
    def forward(self, x: Tensor, less: bool = True) -> Tensor:
        x = self.features(x)
        return self.tail(x) if less else x


class WithInTraining(Headed):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        x = self.features(x)
        return (self.tail(x), (x * mask).sum()) if self.training and mask is not None else self.tail(x)


def changes(model: nn.Module, modes: dict[str, bool], calls: list[dict[str, Any]]) -> tuple[str, ...]:
    """The producers that fold changes; in each call, in training and evaluation mode, the network computes the same."""
    torch.manual_seed(0)
    model, _ = convert(model.double(), Eliminated(keep=0.5), lambda name, _: name.split(".")[-1] in ("head", "tail"))
    for name, training in modes.items():
        model.get_submodule(name).train(training)
    kept = {name: module.training for name, module in model.named_modules()}
    before = copy.deepcopy(model)
    _, folded = fold(model)
    assert {name: module.training for name, module in model.named_modules()} == kept
    x = torch.randn(5, 6, dtype=torch.float64)
    for training in (True, False):
        for options in calls:
            expected, computed = (one.train(training)(x, **options) for one in (before, model))
            torch.testing.assert_close(computed, expected)
    return tuple(one.producer for one in folded)


MASK = torch.linspace(-1, 1, 8, dtype=torch.float64)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [Either, Both])
def test_what_other_layers_read_in_another_mode_stays(kind: type[Headed], training: bool) -> None:
    assert changes(kind(), {"": training}, [{}]) == ("stem",)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "option", "producers"),
    [
        (Masked, {"mask": MASK}, ("stem",)),
        (Given, {"mask": MASK}, ()),
        (With, {"more": True}, ("stem",)),
        (Without, {"less": False}, ("stem",)),
        (WithInTraining, {"mask": MASK}, ("stem",)),
    ],
)
def test_what_others_read_by_an_optional_argument_stays(
    kind: type[Headed], option: dict[str, Any], producers: tuple[str, ...], training: bool
) -> None:
    assert changes(kind(), {"": training}, [{}, option]) == producers


class Frozen(nn.Module):
    """Reads the features of its inner network too where both train."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Module(), nn.Linear(8, 3)
        self.inner.first, self.inner.tail = nn.Linear(6, 8), nn.Linear(8, 3)
        self.outer = Both()

    def forward(self, x: Tensor) -> Any:
        hidden = self.inner.first(x)
        found = [self.inner.tail(hidden), self.outer(x)]
        return [*found, self.last(hidden)] if self.training and self.inner.training else found


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_modules_of_different_modes_are_looked_at_in_each(outer: bool, inner: bool) -> None:
    modes = {"": outer, "inner": inner, "outer": not outer, "outer.norm": outer}
    assert changes(Frozen(), modes, [{}]) == ("outer.stem",)


def test_folding_leaves_the_state_of_a_network() -> None:
    class Counting(Both):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
            self.count += 1  # type: ignore[assignment, operator, misc]
            self.seen.append(torch.rand(2))
            self.last = x
            return super().forward(x)

    model, _ = convert(Counting(), Eliminated(keep=0.5), lambda name, _: name == "head")
    state, count = torch.get_rng_state(), model.count
    assert [one.producer for one in fold(model)[1]] == ["stem"]
    assert model.count is count and count == 0 and model.seen == [] and not hasattr(model, "last")
    assert torch.equal(torch.get_rng_state(), state)


def test_readers_that_a_list_holds_too_stay() -> None:
    model, _ = convert(Either(), Eliminated(keep=0.5), lambda name, _: name == "head")
    model.listed = [model.head]  # type: ignore[assignment]
    assert fold(model)[1] == ()
