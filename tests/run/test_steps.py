"""The layers taken apart compute what the whole network computes."""

import copy
from collections.abc import Sequence

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from lamina.build import trace
from lamina.build.models import create
from lamina.errors import UnsupportedError
from lamina.run import seed_gradient, walk, whole_step
from lamina.spec import Phase, ResolvedLayer

from .walked import DATA, FORWARD, WEIGHT, steps_of


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


class Spectral(nn.Module):
    """A filter with complex weights between two transforms; ``real`` is whether its output is."""

    def __init__(self, real: bool) -> None:
        super().__init__()
        self.real, self.first = real, nn.Linear(8, 8)
        self.filter = nn.Parameter(torch.randn(3, 5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.fft.rfft(self.first(x)) * self.filter
        return torch.fft.irfft(y) if self.real else y


def test_complex_values_have_their_gradients() -> None:
    steps = steps_of(Spectral(True), torch.randn(2, 3, 8))
    for name, phase in (("fft_rfft", DATA), ("mul", DATA), ("mul", WEIGHT), ("fft_irfft", DATA)):
        step = steps[name, phase]
        assert step.call is not None and step.rel_error is not None and step.rel_error < 1e-5, (name, phase, step)


def test_complex_outputs_have_gradients() -> None:
    network, x = Spectral(False), torch.randn(2, 3, 8)
    assert steps_of(network, x)["mul", WEIGHT].call is not None
    gradients = whole_step(network, [x], seed_gradient(None), backward=True)()
    assert all(gradient.abs().sum() > 0 for gradient in gradients)  # type: ignore[attr-defined]


def test_a_number_of_outputs_that_depends_on_values_is_a_reason() -> None:
    """Random values reach the consumers of a layer that cannot run again as it was traced."""

    class Splitting(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> list[Tensor]:  # type: ignore[override]
            self.calls += 1
            return list(super().forward(x).split(2 if self.calls == 1 else 1))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.split, self.last = nn.Linear(4, 4), Splitting(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(torch.cat(self.split(self.first(x))))
            return y

    steps = steps_of(Whole(), torch.randn(4, 4))
    assert steps["split", FORWARD].reason == (
        "it returned 2 tensors when it was traced and 4 now: their number depends on values"
    )
    assert steps["first", WEIGHT].outcome == steps["last", WEIGHT].outcome == "ok"
