"""What reaches each layer, and its step on that."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.select import layer_step, observe, stored
from lamina.errors import UsageError
from lamina.run import precision_mode


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 5), nn.Linear(5, 4), nn.BatchNorm1d(5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y: Tensor = self.second(F.dropout(self.norm(self.first(x)), 0.5).relu() * scale)
        return y


def test_inputs_are_those_of_the_model_and_nothing_changes() -> None:
    model, x = Net(), torch.randn(3, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    calls = observe(model, ["first", "second"], {"x": x, "scale": 2.0})
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert calls["first"].differentiated == (False,) and calls["second"].differentiated == (True,)
    assert calls["first"].tensors[0].data_ptr() == x.data_ptr()
    assert "(3, 5)" in calls["second"].signature and ":grad" in calls["second"].signature
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_calls_with_nested_tensors_or_in_a_transform_are_left_out() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            rows = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
            y = torch.nested.to_padded_tensor(self.first(rows), 0.0).sum(1)
            return self.third(torch.func.vmap(self.second)(y))

    assert set(observe(Odd(), ["first", "second", "third"], torch.randn(3, 6))) == {"third"}


def test_autocast_is_observed() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        (call,) = observe(model, ["0"], torch.randn(2, 4)).values()
    assert call.autocast == torch.bfloat16
    y = layer_step(model[0], call, "eager", training=False)()
    assert isinstance(y, Tensor) and y.dtype == torch.bfloat16


def test_a_step_gives_the_gradients_that_the_model_needs() -> None:
    model, x = Net().eval(), torch.randn(3, 6)
    calls = observe(model, ["first", "second"], x)
    gradients = layer_step(model.first, calls["first"], "eager", training=True)()
    assert [tuple(g.shape) for g in gradients] == [(5, 6), (5,)]  # type: ignore[attr-defined]
    gradients = layer_step(model.second, calls["second"], "eager", training=True)()
    assert [tuple(g.shape) for g in gradients] == [(3, 5), (4, 5), (4,)]  # type: ignore[attr-defined]
    y = layer_step(model.second, calls["second"], "eager", training=False)()
    assert isinstance(y, Tensor) and not y.requires_grad
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("example", [torch.randn(2, 7), (torch.randn(2, 6), 1.0, 3), {"y": torch.randn(2, 6)}])
def test_an_example_that_does_not_fit_is_refused(example: object) -> None:
    model = Net()
    with pytest.raises(UsageError, match="does not take it"):
        observe(model, ["first"], example)
    assert not model.first._forward_pre_hooks


def test_a_scripted_module_is_not_observed_but_the_others_are() -> None:
    with warnings.catch_warnings(action="ignore"):  # deprecated, but users have it
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4))))
    assert observe(model, ["0", "1.0"], torch.randn(2, 4)).keys() == {"0"}


def test_the_signature_tells_the_precision_of_float32() -> None:
    model = nn.Linear(5, 4)
    call = observe(model, [""], torch.randn(3, 5))[""]
    with precision_mode("tf32"):
        fast = call.signature
    with precision_mode("fp32"):
        assert fast.endswith("fp32=tf32/tf32") and "tf32" not in call.signature


def test_what_is_stored_tells_types_and_layouts_of_weights() -> None:
    conv = nn.Conv2d(2, 4, 3, bias=False)
    assert stored(conv) == "(4, 2, 3, 3):(18, 9, 3, 1):float32"
    conv.to(torch.bfloat16, memory_format=torch.channels_last)
    assert stored(conv) == "(4, 2, 3, 3):(18, 1, 6, 2):bfloat16"
    assert stored(nn.LazyLinear(4)) == "lazy; lazy" and stored(nn.ReLU()) == ""
    sparse = nn.Module()
    sparse.register_buffer("index", torch.eye(2).to_sparse())
    assert stored(sparse) == "(2, 2):torch.sparse_coo:float32"
