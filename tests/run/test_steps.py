"""The layers taken apart compute what the whole network computes."""

import copy
import random
from collections.abc import Sequence

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from lamina.build import trace
from lamina.build.models import create
from lamina.errors import UnsupportedError
from lamina.run import memory_plan, precision_mode, seed_gradient, walk
from lamina.run.steps import Step
from lamina.spec import Phase, ResolvedLayer

FORWARD, DATA, WEIGHT = Phase.FORWARD, Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT


def steps_of(network: nn.Module, x: Tensor, **options: object) -> dict[tuple[str, Phase], Step]:
    arguments: dict[str, object] = {
        "phases": tuple(Phase),
        "precision": "fp32",
        "seed_gradient": seed_gradient(None),
        **options,
    }
    visits = walk(trace(network, x), [x], **arguments)  # type: ignore[arg-type]
    found = {}
    for visit in visits:
        for step in visit:
            found[step.resolved.name, step.phase] = step
            if step.call is not None:
                step.call()
    return found


def test_weight_gradients_of_the_walk_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    network, x = create("resnet10_cifar"), torch.randn(2, 3, 32, 32)
    reference = copy.deepcopy(network)
    labels = torch.tensor([1, 7])
    results: dict[str, Sequence[Tensor]] = {}
    found = trace(network, x)
    for visit in walk(
        found, [x], phases=tuple(Phase), precision="fp32", seed_gradient=seed_gradient(labels), check=False
    ):
        for step in visit:
            if step.phase is WEIGHT:
                assert step.call is not None
                results[step.resolved.name] = step.call()  # type: ignore[assignment]
    torch.nn.functional.cross_entropy(reference(x), labels).backward()
    assert len(results) == 25
    for name, gradients in results.items():
        expected = [p.grad for p in reference.get_submodule(name).parameters()]
        for ours, theirs in zip(gradients, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_every_phase_is_visited_once_and_checked() -> None:
    found = steps_of(create("lenet5"), torch.randn(2, 1, 28, 28))
    skipped = [key for key, step in found.items() if step.outcome != "ok"]
    assert skipped == [("features.0", DATA)]
    assert found[skipped[0]].reason == "its input needs no gradient"
    assert all(step.rel_error is not None and step.rel_error < 1e-5 for step in found.values() if step.call)


def test_the_input_gradient_is_measured_if_requested() -> None:
    found = steps_of(create("lenet5"), torch.randn(2, 1, 28, 28), input_gradients=(True,))
    assert found["features.0", DATA].outcome == "ok"


def test_forward_only_walks_without_gradients() -> None:
    found = steps_of(create("lenet5"), torch.randn(2, 1, 28, 28), phases=(FORWARD,))
    assert {phase for _, phase in found} == {FORWARD}


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


def test_outputs_without_gradient_and_networks_without_layers_are_walked() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dead, self.live = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.dead(x).detach().sign(), self.live(x)

    found = steps_of(Halves(), torch.randn(4, 3))
    assert {step.outcome for step in found.values()} <= {"ok", "skipped"}
    assert found["dead", WEIGHT].outcome == "ok"  # on a random gradient, as for any dead branch
    assert steps_of(nn.Identity(), torch.randn(4, 3)) == {}


def test_a_crash_of_pytorch_is_skipped() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(1, 4))
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    found = steps_of(network.to(memory_format=torch.channels_last), x)
    assert found["1", WEIGHT].outcome == "skipped" and "crashes on the CPU" in found["1", WEIGHT].reason
    assert found["1", DATA].outcome == "ok"


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


def test_an_unsupported_layer_is_skipped_with_its_reason() -> None:
    def implement(layer: ResolvedLayer, module: nn.Module | None) -> nn.Module | None:
        if layer.layer.kind != "linear":
            raise UnsupportedError("only linear layers")
        return module

    found = steps_of(create("lenet5"), torch.randn(2, 1, 28, 28), implement=implement)
    assert found["features.0", FORWARD].reason == "only linear layers"
    assert found["classifier.0", WEIGHT].outcome == "ok"


class Breaks(nn.Module):
    """Runs while it is traced, and out of memory afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor:
            raise torch.OutOfMemoryError("tried to allocate 99 GiB")
        return x * 1


def test_a_failing_layer_is_one_failed_row_and_the_others_are_measured() -> None:
    network = nn.Sequential(nn.Linear(8, 8), Breaks(), nn.Linear(8, 8))
    found = steps_of(network, torch.randn(4, 8))
    assert found["1", FORWARD].outcome == "failed" and "99 GiB" in found["1", FORWARD].reason
    assert found["0", WEIGHT].outcome == "ok" and found["2", WEIGHT].outcome == "ok"


def test_fan_out_adds_gradients() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x)
            return self.left(y) + self.right(y)

    network, x = Twice(), torch.randn(3, 4)
    gradient = torch.randn(3, 4)
    for visit in walk(
        trace(network, x), [x], phases=(WEIGHT,), precision="fp32", seed_gradient=lambda outputs: [gradient]
    ):
        for step in visit:
            if step.resolved.name == "stem":
                (weight, _) = step.call()  # type: ignore[misc, union-attr]
    network(x).backward(gradient)
    torch.testing.assert_close(weight, network.stem.weight.grad)


@pytest.mark.parametrize("backward", [False, True])
def test_memory_plan_reuses_and_covers_every_tensor(backward: bool) -> None:
    found = trace(create("vgg11_cifar"), torch.randn(2, 3, 32, 32))
    made = memory_plan(found, backward)
    own = [slot.number for slot in found.slots if slot.base is None and slot.number not in found.inputs]
    assert all(f"value {number}" in made.chunk_of for number in own)
    assert made.planned_bytes < 0.7 * made.separate_bytes


def test_precision_mode_restores_the_settings() -> None:
    before = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    with pytest.raises(RuntimeError, match="True, True"), precision_mode("tf32"):
        raise RuntimeError(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    after = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    assert before == after


def test_an_unknown_operation_of_the_network_may_choose_its_precision() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ((x.bfloat16() if x.dtype == torch.float32 else x) * 1.5).to(x)

    found = steps_of(nn.Sequential(nn.Linear(8, 8), Half()), torch.randn(4, 8))
    half = found["1", FORWARD]
    assert half.outcome == "ok" and half.rel_error is not None and half.rel_error > 1e-3
