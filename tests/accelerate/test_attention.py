"""Attention with its projections as layers computes what `torch.nn.MultiheadAttention` does, and converts."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.accelerate.attention import UnpackedAttention
from lamina.accelerate.stand_ins import STANDS_FOR, restore, standardize

N, L, S, E = 3, 4, 5, 8
CIRCULANT = lamina.Circulant(block_size=4)


def attention(batch_first: bool = True, bias: bool = True, dim: int | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    made = nn.MultiheadAttention(E, 2, bias=bias, batch_first=batch_first, kdim=dim, vdim=dim, **options)
    if bias:
        nn.init.normal_(made.in_proj_bias)
        nn.init.normal_(made.out_proj.bias)
    return made


def rows(length: int, dim: int, batch_first: bool, batched: bool) -> Tensor:
    shape = (length, dim) if not batched else (N, length, dim) if batch_first else (length, N, dim)
    return torch.randn(shape)


def masks(kind: str, length: int, count: int) -> dict[str, Any]:
    later = torch.ones(L, length, dtype=torch.bool).triu(1)
    added = torch.zeros(L, length).masked_fill(later, -torch.inf)
    return {
        "none": {},
        "bool": {"attn_mask": later},
        "float": {"attn_mask": added},
        "by head": {"attn_mask": torch.randn(2 * count, L, length)},
        "causal": {"attn_mask": added, "is_causal": True},
    }[kind]


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "by head", "causal"])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_it_computes_what_the_packed_module_does(batch_first: bool, batched: bool, kind: str, training: bool) -> None:
    torch.manual_seed(1)
    q, k, v = (rows(length, E, batch_first, batched) for length in (L, S, S))
    for dim, bias, weights, averaged, padded in product((None, 6), (True, False), *((True, False),) * 3):
        packed = attention(batch_first, bias, dim).train(training)
        other = [rows(S, 6, batch_first, batched) for _ in range(2)]
        for args in [(q, k, v), (q, q, q), (q, k, k)] if dim is None else [(q, *other)]:
            length = args[1].shape[-2] if batch_first or not batched else args[1].shape[0]
            asked = masks(kind, length, N if batched else 1) | {"need_weights": weights}
            if padded:
                hidden = torch.zeros(N, length, dtype=torch.bool)
                hidden[0, -1] = True
                asked["key_padding_mask"] = hidden if batched else hidden[0]
            y, expected = packed(*args, **asked, average_attn_weights=averaged)
            ours: Any = standardize(packed)
            y_ours, got = ours(*args, **asked, average_attn_weights=averaged)
            torch.testing.assert_close(y_ours, y)
            assert type(got) is type(expected)
            if got is not None:
                torch.testing.assert_close(got, expected)


def test_gradients_reach_the_parameters_of_the_packed_module() -> None:
    packed, x = attention(), torch.randn(N, L, E)
    ours = standardize(packed)
    ours(x, x, x)[0].square().sum().backward()
    found = [one.grad for one in packed.parameters()]
    packed.zero_grad(set_to_none=True)
    restore(ours)(x, x, x)[0].square().sum().backward()
    for one, expected in zip(found, packed.parameters(), strict=True):
        torch.testing.assert_close(one, expected.grad)


def test_causal_attention_without_a_mask_is_refused_as_by_pytorch() -> None:
    x = torch.randn(N, L, E)
    for one in (attention(), standardize(attention())):
        with pytest.raises(RuntimeError, match="Need attn_mask"):
            one(x, x, x, is_causal=True)


def test_what_is_not_converted_is_packed_again() -> None:
    model = nn.TransformerEncoderLayer(E, 2, 16, batch_first=True)
    before = dict(model.named_modules())
    assert isinstance(standardize(model).get_submodule("self_attn"), UnpackedAttention)
    assert dict(restore(model).named_modules()) == before
    lamina.convert(model, CIRCULANT, lambda name, _: name == "linear1")
    assert model.self_attn is before["self_attn"]


def test_a_converted_projection_keeps_no_dense_weight_in_memory() -> None:
    model, _ = lamina.convert(nn.Sequential(attention()), CIRCULANT, lambda name, _: name == "0.in_proj")
    ours: Any = model[0]
    assert getattr(ours, STANDS_FOR) == () and restore(model)[0] is ours


@pytest.mark.parametrize("config", [CIRCULANT, lamina.Eliminated(keep=0.5), lamina.WeightOnly()])
def test_projections_convert_under_names_of_their_own(config: object) -> None:
    x = torch.randn(2, L, E)
    model, record = lamina.convert(nn.TransformerDecoderLayer(E, 2, 16, 0.0, batch_first=True), config, example=(x, x))
    names = {one.layer for one in record.replaced}
    memory = {f"multihead_attn.{one}" for one in ("q_proj", "k_proj", "v_proj", "out_proj")}
    assert names == {"self_attn.in_proj", "self_attn.out_proj", *memory, "linear1", "linear2"}
    torch.testing.assert_close(model.train()(x, x), model.eval()(x, x))


class Decoder(nn.Module):
    """Attention to a memory by the names that networks give it."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = attention()
        self.multihead_attn, self.cross_attn, self.encoder_attn = (attention() for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.self_attn(x, x, x)[0]
        for one in (self.multihead_attn, self.cross_attn, self.encoder_attn):
            x = x + one(x, memory, memory)[0]
        return x


def test_attention_to_a_memory_projects_it_to_keys_and_values_alone() -> None:
    x, memory = torch.randn(N, L, E), torch.randn(N, 3, E)
    model = Decoder().eval()
    expected = model(x, memory)
    standard = standardize(model)
    torch.testing.assert_close(standard(x, memory), expected)
    joint = {name: one.joint for name, one in standard.named_modules() if isinstance(one, UnpackedAttention)}
    assert joint == {"self_attn": True, "multihead_attn": False, "cross_attn": False, "encoder_attn": False}
    alone = standardize(nn.ModuleDict({"multihead_attn": attention()})).get_submodule("multihead_attn")
    assert isinstance(alone, UnpackedAttention) and alone.joint


def test_a_padded_encoder_runs_in_evaluation_mode_too() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 2, 16, 0.0, batch_first=True), 2).eval()
    x, hidden = torch.randn(N, L, E), torch.zeros(N, L, dtype=torch.bool)
    hidden[0, 2:] = True
    for part in ("linear1", "in_proj", ""):
        model, _ = lamina.convert(copy.deepcopy(encoder), CIRCULANT, lambda name, _, part=part: part in name)
        expected = model(x, src_key_padding_mask=hidden)  # autograd keeps it from the fast path
        with torch.no_grad():
            torch.testing.assert_close(model(x, src_key_padding_mask=hidden)[~hidden], expected[~hidden])


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: attention(add_bias_kv=True), "add_bias_kv"),
        (lambda: attention(add_zero_attn=True), "add_zero_attn"),
        (lambda: _hooked(attention()), "it has hooks"),
        (lambda: type("Own", (nn.MultiheadAttention,), {})(E, 2), "a class of its own"),
    ],
)
def test_what_cannot_be_unpacked_stays_and_says_why(made: Any, reason: str) -> None:
    model = nn.Sequential(made())
    packed = model[0]
    model, record = lamina.convert(model, CIRCULANT)
    assert model[0] is packed
    assert [one.layer for one in record.skipped] == ["0.out_proj"]
    assert reason in str(record.skipped[0].refusal)


def _hooked(module: Any) -> Any:
    module.register_forward_hook(lambda *_: None)
    return module


class ByItsWeights(nn.Module):
    """Computes with the weights of its attention itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.head = attention(), nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        q, _, _ = nn.functional.linear(x, self.attn.in_proj_weight, self.attn.in_proj_bias).chunk(3, -1)
        return self.head(q)


def test_attention_that_is_not_called_stays() -> None:
    x = torch.randn(N, L, E)
    model, record = lamina.convert(ByItsWeights(), CIRCULANT, example=x)
    assert [one.layer for one in record.replaced] == ["head"]
    assert type(model.attn) is nn.MultiheadAttention and model(x).shape == x.shape


def test_it_compiles_without_a_graph_break_and_exports() -> None:
    x = torch.randn(2, L, E)
    layer = nn.TransformerEncoderLayer(E, 2, 16, dropout=0.0, batch_first=True)
    model, _ = lamina.convert(layer, CIRCULANT, lambda name, _: "proj" in name)
    expected = model(x)
    for training in (True, False):
        compiled = torch.compile(model.train(training), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_converted_encoder_trains_in_a_graph_on_a_gpu(dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True)
    model, record = lamina.convert(nn.TransformerEncoder(layer, 2), lamina.Circulant(64))
    assert len(record.replaced) == 8
    x = torch.randn(32, 64, 256)
    expected = copy.deepcopy(model).double()(x.double())
    model, x = model.cuda(), x.cuda()
    with torch.no_grad(), torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
        error = (model(x).double().cpu() - expected).norm() / expected.norm()
    assert error < (1e-2 if dtype else 1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    step = lamina.graphed_step(model, lambda y, target: (y.float() - target).square().mean(), optimizer, autocast=dtype)
    losses = [step(x, torch.zeros_like(x)).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
