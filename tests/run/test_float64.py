"""Every phase is compared with float64: random layers, buffers, cancellation, and what cannot be compared."""

import random

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from lamina.run.check import relative_error
from lamina.spec import ResolvedLayer

from .walked import DATA, FORWARD, WEIGHT, steps_of


class Noise(nn.Module):
    """Draws other numbers in float64 than in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class DropPath(nn.Module):
    """Stochastic depth, which seldom drops a sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.new_empty(len(x), 1).bernoulli_(0.98)


class Checkpointed(nn.Module):
    """Draws again in its backward pass, and from Python's generator."""

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.utils.checkpoint.checkpoint(Noise(), x.sin() * random.random(), use_reentrant=False)
        return inner * torch.rand(len(x), 1, dtype=x.dtype)  # type: ignore[no-any-return]


def test_random_layers_are_compared_on_the_same_random_tensors() -> None:
    network = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), Noise(), DropPath(), Checkpointed(), nn.Linear(64, 2))
    for seed in range(10):
        torch.manual_seed(seed)
        found = steps_of(network, torch.randn(8, 64))
        assert {step.outcome for step in found.values()} <= {"ok", "skipped"}
        assert found["1", FORWARD].rel_error == 0
        for step in found.values():
            assert step.call is None or (step.rel_error is not None and step.rel_error < 1e-6 and not step.note), step


def wrong_noise(self: nn.Module, x: Tensor) -> Tensor:
    return x - torch.randn_like(x) * (2 if x.dtype == torch.float32 else 1)


def test_a_random_and_wrong_layer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongDropout(nn.Module):
        def reference(self) -> nn.Module:
            return nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.empty_like(x).bernoulli_(0.5)  # without the scale

    def implement(layer: ResolvedLayer, module: nn.Module | None) -> nn.Module | None:
        return WrongDropout() if isinstance(module, nn.Dropout) else module

    network, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), Noise()), torch.randn(8, 64)
    found = steps_of(network, x, implement=implement)
    assert found["1", FORWARD].outcome == "failed" and "against float64" in found["1", FORWARD].reason
    assert found["1", DATA].outcome == "failed"
    monkeypatch.setattr(Noise, "forward", wrong_noise)
    assert steps_of(network, x)["2", FORWARD].outcome == "failed"


def test_what_float64_cannot_repeat_is_unchecked_with_its_reason() -> None:
    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + (torch.randn_like(x) if x.dtype == torch.float32 else torch.rand_like(x))

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise RuntimeError("Expected mat_a to be Float32, BFloat16 or Float16 matrix, got Double")
            return x * 2

    found = steps_of(nn.Sequential(nn.Linear(8, 8), Other(), Half()), torch.randn(4, 8))
    for name, reason in (("1", "draws random numbers"), ("2", "Expected mat_a")):
        step = found[name, FORWARD]
        assert step.outcome == "ok" and step.rel_error is None and step.call is not None
        assert step.note.startswith("unchecked: ") and reason in step.note


def test_buffers_changed_in_forward_are_the_same_in_both_runs_of_the_check() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.mul_(2)
            return x * self.seen.clone()

    network, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=0.5), Counter()), torch.randn(4, 8)
    found = steps_of(network, x)
    for name in ("1", "2"):
        step = found[name, FORWARD]
        assert step.outcome == "ok" and step.rel_error is not None and step.rel_error < 1e-6


class Scale(nn.Module):
    """Its weight's gradient is a sum over all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Coarse(Scale):
    """Keeps too few digits."""

    def reference(self) -> nn.Module:
        return Scale()

    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16().float() * self.scale


def test_a_sum_that_cancels_is_held_to_what_a_rounding_of_its_inputs_does() -> None:
    half = torch.rand(50_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    x = torch.cat([half, -half * (1 + 1e-6)]).float()
    ones = {"seed_gradient": lambda outputs: [torch.ones_like(output) for output in outputs]}
    right = steps_of(Scale(), x, **ones)["scale", WEIGHT]
    assert right.outcome == "ok" and right.rel_error is not None and right.rel_error > 1e-3
    wrong = steps_of(Scale(), x, implement=lambda layer, module: Coarse(), **ones)
    assert wrong["scale", FORWARD].outcome == "failed"


def test_outputs_that_are_no_numbers_in_float64_either_are_no_error() -> None:
    class Undefined(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x / 0, (x - x) / (x - x), x])

    found = steps_of(Undefined(), torch.randn(4, 3), phases=(FORWARD,))
    assert [(step.outcome, step.rel_error) for step in found.values()] == [("ok", 0.0)]


def test_outputs_beyond_the_range_of_the_result_are_no_error() -> None:
    class Masked(nn.Module):
        """A sum of two attention masks."""

        def forward(self, x: Tensor) -> Tensor:
            lowest = torch.full_like(x, torch.finfo(torch.float32).min)
            return torch.cat([x, lowest + lowest])

    (step,) = steps_of(Masked(), torch.randn(4, 3), phases=(FORWARD,)).values()
    assert step.outcome == "ok", step.reason
    assert relative_error([torch.tensor([-torch.inf])], [torch.tensor([-1.0], dtype=torch.float64)]) == torch.inf


class Faulty(nn.Linear):
    """A linear layer whose kernel forgets the last input feature."""

    def reference(self) -> nn.Module:
        plain = nn.Linear(self.in_features, self.out_features)
        plain.load_state_dict(self.state_dict())
        return plain

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x[..., :-1], self.weight[:, :-1], self.bias)


def test_an_incorrect_implementation_is_never_timed() -> None:
    def implement(layer: ResolvedLayer, module: nn.Module | None) -> nn.Module:
        assert module is not None
        faulty = Faulty(module.in_features, module.out_features)  # type: ignore[arg-type]
        faulty.load_state_dict(module.state_dict())
        return faulty

    found = steps_of(nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8), implement=implement)
    step = found["0", FORWARD]
    assert step.outcome == "failed" and step.call is None and "against float64 exceeds" in step.reason


def test_an_unknown_operation_of_the_network_may_choose_its_precision() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ((x.bfloat16() if x.dtype == torch.float32 else x) * 1.5).to(x)

    found = steps_of(nn.Sequential(nn.Linear(8, 8), Half()), torch.randn(4, 8))
    half = found["1", FORWARD]
    assert half.outcome == "ok" and half.rel_error is not None and half.rel_error > 1e-3


def test_sparse_gradients_are_compared() -> None:
    network = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    step = steps_of(network, torch.tensor([[0, 1, 1], [4, 0, 2]]))["0", WEIGHT]
    assert step.outcome == "ok" and step.rel_error is not None and step.rel_error < 1e-5
