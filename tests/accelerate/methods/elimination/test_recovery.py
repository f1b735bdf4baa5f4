"""Recoveries against least squares on the inputs themselves; errors fall in the order that theory says."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.methods.elimination import Eliminated, recovery
from lamina.accelerate.methods.elimination import convert as cell
from lamina.accelerate.methods.elimination.config import By, Recovery
from lamina.accelerate.methods.elimination.nn import EliminatedLinear
from lamina.errors import UsageError

FITTED = Eliminated(keep=0.5, recovery="least_squares")
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(12, 5), (60, 12)),
    "without bias": (lambda: nn.Linear(12, 5, bias=False), (60, 12)),
    "conv1d": (lambda: nn.Conv1d(6, 5, 3, 2, padding=1, dilation=2), (20, 6, 11)),
    "conv2d": (lambda: nn.Conv2d(6, 5, (3, 2), padding="same", padding_mode="circular"), (12, 6, 5, 4)),
}


def correlated(*shape: int) -> Tensor:
    """Positive inputs of which neighbouring channels say much the same, as after a ReLU."""
    x = torch.randn(shape, dtype=torch.float64) + 1
    x[:, 1::2] = 0.8 * x[:, ::2] + 0.3 * x[:, 1::2]
    return x.relu()


@torch.no_grad()
def error(layer: Any, dense: nn.Module, x: Tensor) -> float:
    return float((layer(x) - dense(x)).square().mean())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_positions_are_what_a_layer_multiplies(name: str) -> None:
    make, shape = LAYERS[name]
    dense, x = make().double(), correlated(*shape)
    y = recovery.positions(dense, x) @ dense.get_parameter("weight").flatten(1).mT
    y = y if getattr(dense, "bias", None) is None else y + dense.get_parameter("bias")
    expected = dense(x).movedim(1, -1).reshape(-1, 5) if x.dim() > 2 else dense(x)
    torch.testing.assert_close(y, expected)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("by", ["channel", "tap"])
@pytest.mark.parametrize("name", LAYERS)
def test_fitted_weights_are_the_best(name: str, by: By) -> None:
    make, shape = LAYERS[name]
    dense, x = make().double(), correlated(*shape)
    config = Eliminated(keep=0.5, by=by, recovery="least_squares", impl="gather")
    layer, _ = recovery.eliminate(copy.deepcopy(dense), config, [x[:8], x[8:]], ridge=0.0)
    rows, target = recovery.positions(dense, x).numpy(), recovery.positions(dense, x)
    kept: Any = layer
    places = kept.index
    if dense.get_parameter("weight").dim() > 2 and by == "channel":
        taps = dense.get_parameter("weight")[0, 0].numel()
        places = (places[:, None] * taps + torch.arange(taps)).flatten()
    inputs = rows[:, places.numpy()]
    has_bias = getattr(dense, "bias", None) is not None
    if has_bias:
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    wanted = (target @ dense.get_parameter("weight").flatten(1).mT).detach().numpy()
    solution = np.linalg.lstsq(inputs, wanted, rcond=None)[0]
    best = float(np.square(inputs @ solution - wanted).mean())
    assert error(layer, dense, x) == pytest.approx(best, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("by", ["channel", "tap"])
def test_each_recovery_leaves_less_error(by: By) -> None:
    dense, x = nn.Conv2d(8, 6, 3, padding=1).double(), correlated(16, 8, 6, 6)
    errors: dict[Recovery, float] = {}
    for name in ("none", "bias", "least_squares"):
        config = Eliminated(keep=0.5, by=by, recovery=name, impl="gather")
        errors[name] = error(recovery.eliminate(copy.deepcopy(dense), config, [x])[0], dense, x)
    assert errors["least_squares"] < errors["bias"] < errors["none"]
    assert errors["least_squares"] < 0.5 * errors["none"]


def test_a_bias_takes_the_mean_of_what_went() -> None:
    dense, x = nn.Linear(6, 4).double(), correlated(40, 6)
    layer: Any = recovery.eliminate(copy.deepcopy(dense), Eliminated(keep=0.5, recovery="bias"), [x])[0]
    torch.testing.assert_close(layer(x).mean(0), dense(x).mean(0))
    assert torch.equal(layer.weight, dense.weight[:, layer.index])


def test_scaling_needs_no_data_and_is_the_papers_factor() -> None:
    dense = nn.Linear(6, 4)
    ours: Any = recovery.eliminate(copy.deepcopy(dense), Eliminated(keep=0.5))[0]
    theirs: Any = cell.replace(dense, Eliminated(keep=0.5))
    assert torch.equal(ours.weight, theirs.weight)
    # Where the inputs are all alike, the factor is exact.
    with torch.no_grad():
        dense.weight.copy_(dense.weight[:, :1].expand(4, 6))
    layer: Any = cell.replace(dense, Eliminated(keep=0.5))
    torch.testing.assert_close(layer(torch.full((2, 6), 3.0)), dense(torch.full((2, 6), 3.0)))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_inputs_are_fitted(bidirectional: bool) -> None:
    dense = nn.LSTM(8, 5, bidirectional=bidirectional).double()
    x = torch.randn(4, 6, 8, dtype=torch.float64)
    x[..., 1::2] = 0.5 * x[..., ::2] + 0.25
    for name in ("bias", "least_squares"):
        config = Eliminated(keep=0.5, recovery=name)
        layer: Any = cell.build(dense, torch.tensor([0, 2, 4, 6]), config)
        recovery.recover(layer, dense, recovery.Moments.of(x.reshape(-1, 8)), config)
        exact = torch.allclose(layer(x)[0], dense(x)[0], rtol=1e-4, atol=1e-4)
        assert exact == (name == "least_squares")
    chosen, record = recovery.eliminate(dense, Eliminated(keep=0.5, recovery="least_squares"), [x])
    assert len(record.replaced) == 1 and chosen(x)[0].isfinite().all()


def test_a_whole_network_gets_nearer_and_is_written_down() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
    x = torch.randn(64, 3, 6, 6)
    errors = {}
    for name in ("none", "scale", "least_squares"):
        config = Eliminated(keep=0.5, recovery=name)
        ours, record = recovery.eliminate(copy.deepcopy(model), config, [(x[:32],), (x[32:],)])
        errors[name] = error(ours, model, x)
        assert f"recovery={name}" in record.method and len(record.replaced) == 3
        assert {layer.method for layer in record.layers} == {record.method}
    assert errors["least_squares"] < min(errors["none"], errors["scale"])


def test_inputs_that_never_vary_do_no_harm() -> None:
    dense = nn.Linear(6, 4)
    x = torch.randn(30, 6)
    x[:, 3:] = 0
    layer: Any = recovery.eliminate(copy.deepcopy(dense), Eliminated(keep=0.7, recovery="least_squares"), [x])[0]
    assert layer.weight.isfinite().all() and layer.weight.abs().max() < 100


@pytest.mark.parametrize(
    ("config", "batches", "message"),
    [
        (FITTED, None, "batches: expected inputs of the model, each a tensor, tuple or dict, got None"),
        (FITTED, [torch.zeros(3, 3)], "the model does not take calibration batch 1: RuntimeError: mat1 and mat2"),
        (FITTED, [(torch.zeros(8, 4), torch.zeros(8))], "the model does not take calibration batch 1: TypeError"),
        (Eliminated, [torch.zeros(8, 4)], "config: expected a configuration such as"),
    ],
)
def test_wrong_arguments_are_told(config: Any, batches: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recovery.eliminate(nn.Sequential(nn.Linear(4, 4)), config, batches)


def test_faults_are_told() -> None:
    config = Eliminated(keep=0.5, recovery="least_squares")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(UsageError, match="at least one batch"):
        recovery.eliminate(model, config)
    with pytest.raises(UsageError, match="0: expected finite inputs, got NaN or infinity in calibration batch 2"):
        recovery.eliminate(model, config, [torch.zeros(1, 4), torch.full((1, 4), torch.nan)])
    with pytest.raises(UsageError, match="layers with a bias"):
        recovery.eliminate(nn.Linear(4, 4, bias=False), Eliminated(recovery="bias"), [torch.zeros(1, 4)])
    with pytest.raises(UsageError, match="ridge of -1"):
        recovery.eliminate(copy.deepcopy(model), config, [torch.randn(8, 4)], ridge=-1)
    with pytest.raises(UsageError, match="call the model once first"):
        recovery.eliminate(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), config, [torch.randn(8, 4)])


class Half(nn.Module):
    """Uses one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.used(x))


def test_layers_that_no_batch_reaches_stay() -> None:
    model, record = recovery.eliminate(Half(), FITTED, [torch.randn(8, 4)])
    assert [layer.layer for layer in record.replaced] == ["used"] and type(model.unused) is nn.Linear
    assert {layer.layer: layer.refusal for layer in record.skipped} == {"unused": recovery.UNREACHED}


@pytest.mark.parametrize("training", [False, True])
def test_attention_is_fitted(training: bool) -> None:
    dense = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True).train(training)
    x = correlated(150, 16).float().view(30, 5, 16)
    errors = {}
    for name in ("none", "least_squares"):
        model, record = recovery.eliminate(copy.deepcopy(dense), Eliminated(keep=0.5, recovery=name), [x])
        assert {one.layer for one in record.replaced} == {
            "self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2",
        }  # fmt: skip
        errors[name] = error(model, dense, x)
    assert errors["least_squares"] < 0.9 * errors["none"]


def test_a_layer_with_two_names_is_fitted_once_to_all_its_inputs() -> None:
    layer, x = nn.Linear(16, 16), correlated(80, 16).float()
    inputs = torch.cat([x, layer(x).relu().detach()])
    alone: Any = recovery.eliminate(copy.deepcopy(layer), FITTED, [inputs])[0]
    model: Any
    model, record = recovery.eliminate(nn.Sequential(layer, nn.ReLU(), layer), FITTED, [x])
    assert model[0] is model[2] and [one.layer for one in record.replaced] == ["0", "2"]
    torch.testing.assert_close(model[0].weight, alone.weight)


class Plain(nn.Linear):
    pass


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_subclasses_are_layers_unless_they_compute_something_else() -> None:
    model, _ = recovery.eliminate(nn.Sequential(Plain(4, 4)), FITTED, [torch.randn(8, 4)])
    assert isinstance(model[0], EliminatedLinear)
    message = "inputs can be pruned, got none: 0: Doubled is none of Linear, Conv1d, Conv2d, LSTM$"
    with pytest.raises(UsageError, match=message):
        recovery.eliminate(nn.Sequential(Doubled(4, 4), nn.ReLU()), FITTED, [torch.randn(8, 4)])
    with pytest.raises(UsageError, match="0: not selected"):
        recovery.eliminate(nn.Sequential(nn.Linear(4, 4)), FITTED, [torch.randn(8, 4)], lambda *_: False)


def interrupted() -> Iterator[Tensor]:
    yield torch.randn(3, 5, 16)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("config", "batches", "ridge"),
    [
        (FITTED, [torch.randn(3, 5, 16), torch.randn(3, 5, 7)], 0.0),
        (FITTED, interrupted(), 0.0),
        (FITTED, [torch.randn(3, 5, 16)], -1.0),
        (Eliminated(recovery="bias"), [torch.randn(3, 5, 16)], 0.0),
        (Eliminated(keep=0.5), [], 0.0),
    ],
)
def test_after_an_error_the_model_is_as_it_was(config: Any, batches: Any, ridge: float) -> None:
    encoder = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval()
    model = nn.Sequential(Plain(16, 16), encoder, nn.Linear(16, 16, bias=False))
    if config.recovery == "scale":
        nn.init.constant_(model[2].weight, torch.nan)
    modules, values = dict(model.named_modules()), copy.deepcopy(model.state_dict())
    with pytest.raises((UsageError, KeyboardInterrupt)):
        recovery.eliminate(model, config, batches, ridge=ridge)
    assert dict(model.named_modules()) == modules and encoder.activation_relu_or_gelu
    assert all(torch.equal(one.nan_to_num(), values[name].nan_to_num()) for name, one in model.state_dict().items())


def test_calibration_leaves_statistics_and_random_state() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)).train()
    norm, values = model[1], copy.deepcopy(model[1].state_dict())
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model, record = recovery.eliminate(model, FITTED, (torch.randn(20, 6) for _ in range(3)))
    assert torch.equal(torch.rand(4), expected)
    assert len(record.replaced) == 2 and model[1] is norm and norm.num_batches_tracked == 0
    assert all(torch.equal(one, values[name]) for name, one in norm.state_dict().items())


@pytest.mark.parametrize("batch", [{"x": torch.ones(3, 4)}, [torch.ones(3, 4)], (torch.ones(3, 4),)])
def test_batches_are_arguments(batch: Any) -> None:
    model = Half()
    moments = recovery.observe(model, {"used": model.used}, [batch])
    assert moments["used"].count == 3


def test_a_layer_of_packed_sequences_stays() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 8), torch.randn(2, 8)])

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.linear = nn.LSTM(8, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Tensor:
            y: Tensor = self.linear(self.lstm(x)[0].data)
            return y

    _, record = recovery.eliminate(Both(), FITTED, [(packed,)])
    assert {one.layer: one.refusal for one in record.layers} == {"lstm": recovery.UNREACHED, "linear": None}


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=x)


def test_inputs_that_are_passed_by_keyword_are_observed() -> None:
    model, x = ByKeyword(), torch.randn(5, 6)
    moments = recovery.observe(model, {"layer": model.layer}, [x])
    torch.testing.assert_close(moments["layer"].mean, x.double().mean(0))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(5, 3, 3, padding=1),
        nn.Conv2d(5, 3, (3, 2), padding=2, dilation=(2, 1)),
        nn.Conv2d(5, 3, (5, 1), padding_mode="circular", padding=(2, 0)),
        nn.Conv2d(5, 3, 3, stride=2),
        nn.Conv2d(5, 3, 1, stride=2),
        nn.Conv1d(5, 3, 3),
    ],
)
@pytest.mark.parametrize("size", [5, 9])
def test_moments_of_windows_are_those_of_the_unfolded_input(layer: Any, size: int) -> None:
    """On images of 5x5, sums of different rows of the kernel have no row in common."""
    x = torch.randn(4, 5, *[size] * (layer.weight.dim() - 2))
    found, expected = recovery.moments_of(layer, x), recovery.Moments.of(recovery.positions(layer, x))
    assert found.count == expected.count
    torch.testing.assert_close(found.total, expected.total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.products, expected.products, rtol=1e-12, atol=1e-12)


def test_a_matrix_that_is_not_positive_definite_by_rounding_is_solved() -> None:
    broken = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    matrix = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(recovery._divided(matrix, broken) @ broken, matrix)


def test_a_singular_matrix_leaves_no_step_where_inputs_do_not_vary() -> None:
    matrix = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    for damped in (torch.zeros(3, 3), torch.ones(3, 3), 1e-312 * torch.eye(3, dtype=torch.float64)):
        step = recovery._divided(matrix, damped.double())
        assert step.isfinite().all() and step.shape == matrix.shape
    torch.testing.assert_close(recovery._divided(matrix, torch.ones(3, 3).double()), torch.full_like(matrix, 2 / 3))
    assert not recovery._divided(matrix, torch.zeros(3, 3).double()).any()
