"""The LSTM layer against `torch.nn.LSTM` on the dense weights."""

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant.nn import BlockCirculantLSTM
from lamina.errors import UnsupportedError, UsageError

pytestmark = pytest.mark.usefixtures("where_kernels_run")

OPTIONS = [
    {"num_layers": 2, "bidirectional": True},
    {"batch_first": True, "bias": False},
    {"hidden_size": 8},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("impl", ["reference", "dense"])
def test_outputs_states_and_gradients_equal_the_dense_layer(options: dict[str, object], impl: str) -> None:
    layer = BlockCirculantLSTM(5, **{"hidden_size": 6, **options}, block_size=4, impl=impl).double()  # type: ignore[arg-type]
    dense = layer.to_dense()
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    states = layer.num_layers * (1 + layer.bidirectional)
    batch = 3 if layer.batch_first else 2
    state = tuple(torch.randn(states, batch, layer.hidden_size, dtype=torch.float64) for _ in range(2))
    results = []
    for lstm in (layer, dense):
        leaf = x.clone().requires_grad_()
        y, (h, c) = lstm(leaf, state)
        slope = torch.autograd.grad(y.square().sum() + (h * c).sum(), leaf)[0]
        results.append((y, h, c, slope))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("impl", ["kernel", "materialized"])
def test_kernels_equal_the_reference(impl: str, poisoned_empty: None) -> None:
    layer = BlockCirculantLSTM(5, 6, block_size=4, impl=impl)  # type: ignore[arg-type]
    x = torch.randn(2, 1, 5)
    results = []
    for name in (impl, "reference"):
        layer.impl = name  # type: ignore[assignment]
        y, _ = layer(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="the processor has no LSTM in bfloat16 by oneDNN"
)
@pytest.mark.parametrize("impl", ["reference", "dense"])
def test_autocast_gives_the_types_of_the_dense_layer(impl: str) -> None:
    layer = BlockCirculantLSTM(5, 6, 2, bidirectional=True, block_size=4, impl=impl)  # type: ignore[arg-type]
    x, *state = torch.randn(3, 2, 5), torch.randn(4, 2, 6), torch.randn(4, 2, 6)
    # On a GPU the dense layer computes in float16 under any autocast.
    layer, x, state = layer.cpu(), x.cpu(), [one.cpu() for one in state]
    with torch.autocast("cpu", torch.bfloat16):
        for given in (None, state):
            (y, (h, c)), (y2, (h2, c2)) = layer(x, given), layer.to_dense()(x, given)
            for ours, theirs in ((y, y2), (h, h2), (c, c2)):
                assert ours.dtype == theirs.dtype == torch.bfloat16
                torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.03)


def test_unbatched_inputs() -> None:
    layer = BlockCirculantLSTM(5, 6, block_size=4)
    x = torch.randn(3, 5)
    y, (h, c) = layer(x, (torch.ones(1, 6), torch.zeros(1, 6)))
    expected, (h2, c2) = layer(x[:, None], (torch.ones(1, 1, 6), torch.zeros(1, 1, 6)))
    assert torch.equal(y, expected[:, 0])
    assert torch.equal(h, h2[:, 0]) and torch.equal(c, c2[:, 0])


def test_names_are_those_of_the_dense_layer_and_dropout_is_between_layers() -> None:
    layer = BlockCirculantLSTM(5, 6, 2, dropout=1.0, bidirectional=True, block_size=4)
    assert [*layer.state_dict()] == [*nn.LSTM(5, 6, 2, bidirectional=True).state_dict()]
    x = torch.randn(3, 2, 5)
    assert torch.equal(layer(x)[0], layer(torch.zeros_like(x))[0])  # all outputs of the first layer are dropped
    assert not torch.equal(layer.eval()(x)[0], layer(torch.zeros_like(x))[0])


def test_kept_energy_is_over_all_matrices() -> None:
    layer = BlockCirculantLSTM.from_dense(nn.LSTM(32, 32, 2), 8)
    assert layer.kept_energy == pytest.approx(1 / 8, rel=0.2)
    assert BlockCirculantLSTM.from_dense(nn.LSTM(8, 8), 4, init="fresh").kept_energy is None


def test_packed_sequences_are_refused() -> None:
    lengths = torch.tensor([4, 2], device="cpu")  # where PyTorch expects them, also of tensors on a GPU
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, 5), lengths)
    with pytest.raises(UnsupportedError, match="PackedSequence: pad the sequences .pad_packed_sequence., or keep"):
        BlockCirculantLSTM(5, 6, block_size=4)(packed)


def test_dense_layers_are_made_without_random_numbers() -> None:
    layer = BlockCirculantLSTM(5, 6, 2, block_size=4).cpu()
    state = torch.get_rng_state()
    layer.to_dense()
    assert torch.equal(torch.get_rng_state(), state)


def test_proj_size_is_refused() -> None:
    with pytest.raises(UsageError, match="proj_size=0, got 4"):
        BlockCirculantLSTM.from_dense(nn.LSTM(8, 8, proj_size=4), 4)


@pytest.mark.parametrize("options", [{"num_layers": 0}, {"dropout": 1.5}, {"hidden_size": 0}])
def test_invalid_sizes(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        BlockCirculantLSTM(5, **{"hidden_size": 6, **options}, block_size=4)  # type: ignore[arg-type]
