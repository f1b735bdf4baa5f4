"""Networks that break what tools take for granted. Each is legal, or fails as a user's network may fail."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from benchmarks.gauntlet.networks import CLASSES


def mlp(*before_the_head: nn.Module, width: int = 16) -> nn.Sequential:
    """A linear layer, whatever stands between, and a head of `CLASSES`."""
    return nn.Sequential(nn.Linear(32, width), *before_the_head, nn.Linear(width, CLASSES))


class Calls(nn.Module):
    """Calls a function, as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def no_parameters() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Softmax(1))


def one_parameter_in_two_layers() -> nn.Module:
    model = mlp(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    model[3].weight = model[1].weight
    return model


def one_module_at_two_paths() -> nn.Module:
    layer = nn.Linear(16, 16)
    return mlp(layer, nn.ReLU(), layer)


def identity() -> nn.Module:
    return nn.Identity()


def returns_no_tensor() -> nn.Module:
    return nn.Sequential(nn.Linear(32, CLASSES), Calls(lambda x: f"{x.shape}"))


def returns_a_number() -> nn.Module:
    return nn.Sequential(nn.Linear(32, CLASSES), Calls(lambda x: x.sum().item()))


def returns_nothing() -> nn.Module:
    return nn.Sequential(nn.Linear(32, CLASSES), Calls(lambda x: None))


def _raise(x: Tensor) -> Tensor:
    raise ValueError("this network always raises")


def raises() -> nn.Module:
    return mlp(Calls(_raise))


def returns_nan() -> nn.Module:
    return mlp(Calls(lambda x: x / torch.zeros_like(x)), Calls(lambda x: x - x))


def returns_integers() -> nn.Module:
    return nn.Sequential(nn.Linear(32, CLASSES), Calls(lambda x: x.argmax(1)))


def lazy_layers() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))


def _grad_of_energy(x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)[0]


def gradient_within() -> nn.Module:
    """An energy model: its forward pass differentiates."""
    return mlp(Calls(_grad_of_energy))


def no_gradient_within() -> nn.Module:
    return mlp(Calls(torch.no_grad()(lambda x: x * 2)))


def through_numpy() -> nn.Module:
    return mlp(Calls(lambda x: x + torch.from_numpy(x.detach().cpu().numpy()).to(x.device)))


def autocast_within() -> nn.Module:
    def half(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return (x @ x.T @ x).float()

    return mlp(Calls(half))


def zero_sized() -> nn.Module:
    """A part of no rows, and one of no columns, on the way."""
    return mlp(Calls(lambda x: torch.cat([x, x[:0].relu()]) + F.linear(x[:, :0], x.new_zeros(16, 0))))


class Selected(nn.Module):
    """Picks from a `ModuleList`, a `ModuleDict` and a `ParameterList` by index and by name; some are never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norms = nn.ModuleDict({"layer norm": nn.LayerNorm(32), "unused": nn.BatchNorm1d(32)})
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(32)) for _ in range(2))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for index in (2, 0, 2):
            x = self.layers[index](x) * self.scales[index // 2]
        return self.head(self.norms["layer norm"](x))


class Checkpointed(nn.Module):
    """Computes a part again in its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class Plain(nn.Module):
    """Something simple that TorchScript understands."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) + x


def scripted() -> nn.Module:
    return mlp(torch.jit.script(Plain()))


def squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x).square()


@cache
def scripted_squared_relu() -> Any:
    """A function of TorchScript."""
    return torch.jit.script(squared_relu)


class SquaredReLU(nn.Module):
    """Calls TorchScript from Python, as activations of older networks do."""

    def forward(self, x: Tensor) -> Tensor:
        return scripted_squared_relu()(x)


def scripted_function() -> nn.Module:
    return mlp(SquaredReLU(), nn.Linear(16, 16), SquaredReLU())


class ExtraState(nn.Linear):
    """Keeps more than tensors in its state, as neural operators do."""

    def get_extra_state(self) -> dict[str, int]:
        return {"inputs": self.in_features}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.in_features = state["inputs"]


def extra_state() -> nn.Module:
    return mlp(ExtraState(16, 16), nn.ReLU())


def jit_traced() -> nn.Module:
    return mlp(torch.jit.trace(Plain(), torch.zeros(2, 16)))


def fx_traced() -> nn.Module:
    return torch.fx.symbolic_trace(mlp(Plain()))


def compiled_within() -> nn.Module:
    return mlp(torch.compile(Plain(), backend="eager"))  # type: ignore[arg-type]


def frozen() -> nn.Module:
    return mlp(nn.ReLU()).requires_grad_(False)


def half_frozen() -> nn.Module:
    model = mlp(nn.BatchNorm1d(16), nn.ReLU())
    model[0].requires_grad_(False)
    model[1].eval()
    return model


def sparse_embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 16, sparse=True, padding_idx=0), nn.Flatten(), nn.Linear(128, CLASSES))


class Doubled(nn.Module):
    """A parametrization: the weight is a function of what is stored."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight.tanh()


def parametrized() -> nn.Module:
    model = mlp(nn.ReLU())
    parametrize.register_parametrization(model[0], "weight", Doubled())
    return model


def hooked() -> nn.Module:
    """Hooks that change inputs, outputs and gradients."""
    model = mlp(nn.ReLU())
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda module, args, output: output + 1)
    model[2].register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
    return model


class Named(Tensor):
    """A subclass of Tensor that takes part by `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def tensor_subclass() -> nn.Module:
    return mlp(Calls(lambda x: x.as_subclass(Named)), nn.ReLU())


Pair = namedtuple("Pair", ["label", "size"])


@dataclass
class Output:
    """Outputs as a dataclass, which is no container to PyTorch."""

    label: Tensor
    size: Tensor


def namedtuple_output() -> nn.Module:
    return nn.Sequential(nn.Linear(32, CLASSES), Calls(lambda x: Pair(x, x[:, :2])))


def dataclass_output() -> nn.Module:
    return nn.Sequential(nn.Linear(32, CLASSES), Calls(lambda x: Output(x, x[:, :2])))


def scalar_output() -> nn.Module:
    """A network that ends in its own loss."""
    return nn.Sequential(nn.Linear(32, CLASSES), Calls(lambda x: x.square().mean()))


class Stateful(nn.Module):
    """Keeps activations between calls, and adds a layer at its first."""

    def __init__(self) -> None:
        super().__init__()
        self.body: nn.Module | None = None
        self.head = nn.Linear(32, CLASSES)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.body is None:
            self.body = nn.Linear(x.shape[1], 32).to(x.device, x.dtype)
        self.last = self.body(x)
        return self.head(self.last)


class WritesInput(nn.Module):
    """Writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x.clamp_(-1, 1)
        return self.head(x)


class Uncopyable(nn.Module):
    """Refuses to be copied or pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.generator = nn.Linear(32, CLASSES), (item for item in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Methods(nn.Module):
    """Does its work in methods with other names, which `forward` calls with keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(in_features=32, out_features=16), nn.Linear(16, CLASSES)

    def features(self, *, image: Tensor) -> Tensor:
        return self.body(input=image)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=self.features(image=x))


class Packed(nn.Module):
    """A recurrence over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(12, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = [max(1, x.shape[1] - index % 3) for index in range(len(x))]
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        _, (state, _) = self.layer(packed)
        return self.head(state[-1])


def deep() -> nn.Module:
    """Many small layers."""
    return nn.Sequential(nn.Linear(32, 8), *(nn.Linear(8, 8) for _ in range(48)), nn.Linear(8, CLASSES))


def odd_names() -> nn.Module:
    model = nn.Sequential()
    model.add_module("a b", nn.Linear(32, 16))
    model.add_module("[bold]x[/bold]", nn.ReLU())
    model.add_module("größe-λ'", nn.Linear(16, CLASSES))
    return model


def double_precision() -> nn.Module:
    """Double precision in the middle of single precision."""
    return mlp(Calls(lambda x: x.double()), nn.Linear(16, 16).double(), Calls(lambda x: x.float()))


def mixed_precision() -> nn.Module:
    return mlp(Calls(lambda x: x.bfloat16()), nn.Linear(16, 16).bfloat16(), Calls(lambda x: x.float()))


def expanded() -> nn.Module:
    """Views whose elements share memory, and views out of order."""
    return mlp(Calls(lambda x: x[:, :1].expand(-1, 16)), Calls(lambda x: x.flip(1).t().contiguous().t()))


def vectorized() -> nn.Module:
    return mlp(Calls(torch.vmap(lambda row: row.softmax(0) * row.sum())))


def one_class() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 1), nn.Flatten(0))


def empty() -> nn.Module:
    return nn.Sequential()


def huge_values() -> nn.Module:
    return mlp(Calls(lambda x: x * 1e30), Calls(lambda x: x / 1e30))
