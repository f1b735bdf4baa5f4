"""One pass, layer by layer, computes what autograd computes for the whole network."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from lamina import build, run
from lamina.run.iteration import MERGED, NOT_NEEDED, Iteration
from lamina.spec import Phase


class Block(nn.Module):
    """A residual block: a tensor with two readers, and layers of every sort of backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.conv(x)))
        return self.fc((x + self.again(x)).flatten(1))


class Log:
    """Marks in the order they were entered."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Phase]] = []
        self.open = 0

    @contextmanager
    def __call__(self, place: int, phase: Phase) -> Iterator[None]:
        assert not self.open, "marks must not overlap"
        self.seen.append((place, phase))
        self.open += 1
        yield
        self.open -= 1


def made(backward: bool = True, gradient: bool = False) -> tuple[nn.Module, torch.Tensor, Iteration]:
    torch.manual_seed(0)
    network = Block().double()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    iteration = Iteration(
        build.trace(network, x),
        [x],
        seed_gradient=run.seed_gradient(None),
        backward=backward,
        input_gradients=(gradient,),
    )
    return network, x, iteration


@contextmanager
def recorded(gradients: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]]]) -> Iterator[None]:
    """Write down every gradient that is asked for, and its answer."""
    real = torch.autograd.grad

    def grad(outputs, inputs, *rest, **options):  # type: ignore[no-untyped-def]
        answer = real(outputs, inputs, *rest, **options)
        gradients.append((tuple(inputs), answer))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        yield


def test_every_weight_gets_its_gradient_exactly_once() -> None:
    network, x, iteration = made()
    asked: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]]] = []
    with recorded(asked):
        iteration.run(Log())
    ours: dict[int, torch.Tensor] = {}
    for inputs, answers in asked:
        for tensor, answer in zip(inputs, answers, strict=True):
            assert id(tensor) not in ours or not isinstance(tensor, nn.Parameter)
            assert answer is not None
            ours[id(tensor)] = answer
    output = network(x)
    output.backward(run.seed_gradient(None)([output.detach()])[0])
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(ours[id(parameter)], parameter.grad, msg=name)


def test_the_input_gets_its_gradient_if_requested() -> None:
    network, x, iteration = made(gradient=True)
    asked: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]]] = []
    with recorded(asked):
        iteration.run(Log())
    leaf = x.clone().requires_grad_()
    output = network(leaf)
    (expected,) = torch.autograd.grad(output, leaf, run.seed_gradient(None)([output.detach()])[0])
    ours = asked[-1][1][0]
    assert ours is not None
    torch.testing.assert_close(ours, expected)


def test_phases_run_forward_then_in_reverse_as_announced() -> None:
    _, _, iteration = made()
    log = Log()
    iteration.run(log)
    calls = iteration.trace.calls
    forward = [place for place, phase in log.seen if phase is Phase.FORWARD]
    assert forward == list(range(len(calls)))
    backward = log.seen[len(calls) :]
    assert [place for place, _ in backward] == sorted((place for place, _ in backward), reverse=True)
    announced = {(place, phase) for place in forward for phase, why in iteration.phases(place).items() if not why}
    nothing_to_compute = {(place, phase) for place, phase in log.seen if phase not in calls[place].resolved.phases}
    assert set(log.seen) - nothing_to_compute == announced


def test_phases_that_do_not_run_separately_have_a_reason() -> None:
    _, _, iteration = made()
    reasons = {call.resolved.name: iteration.phases(place) for place, call in enumerate(iteration.trace.calls)}
    assert reasons["conv"][Phase.BACKWARD_DATA] == NOT_NEEDED
    assert reasons["norm"][Phase.BACKWARD_WEIGHT] == MERGED
    assert reasons["again"] == dict.fromkeys(Phase, "")


def test_inference_runs_forward_only_without_a_graph() -> None:
    _, _, iteration = made(backward=False)
    log = Log()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: pytest.fail("kept a tensor"), lambda t: t):
        iteration.run(log)
    assert {phase for _, phase in log.seen} == {Phase.FORWARD}


def test_it_can_be_run_again() -> None:
    _, _, iteration = made()
    first, second = Log(), Log()
    iteration.run(first)
    iteration.run(second)
    assert first.seen == second.seen


class Remembers(nn.Module):
    """A layer that keeps its state, and the autograd graph of it, for the next call."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("kept", None)
        self.state: torch.Tensor | None = None
        self.buffer = buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.kept if self.buffer else self.state
        after = torch.tanh(x * self.weight + (0 if before is None else before))
        if self.buffer:
            self.kept = after
        else:
            self.state = after
        return after


class Resets(nn.Module):
    """A network that resets the state of its layer for every input."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.layer, self.fc = Remembers(buffer), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.kept = self.layer.state = None
        return self.fc(self.layer(x))


@pytest.mark.parametrize("buffer", [False, True])
def test_a_layer_that_keeps_a_state_starts_every_run_from_the_same_one(buffer: bool) -> None:
    x = torch.randn(2, 4)
    network = Resets(buffer)
    trace = build.trace(network, x)
    network(x).sum().backward()
    iteration = Iteration(trace, [x], seed_gradient=run.seed_gradient(None))
    seen: list[torch.Tensor] = []
    hook = trace.calls[0].module.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    for _ in range(3):
        iteration.run(Log())
    hook.remove()
    assert len(seen) == 3
    assert all(torch.equal(one, seen[0]) for one in seen)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_layers_run_again() -> None:
    x = torch.randn(2, 4)
    network = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))))
    iteration = Iteration(build.trace(network, x), [x], seed_gradient=run.seed_gradient(None))
    logs = Log(), Log()
    for log in logs:
        iteration.run(log)
    assert logs[0].seen == logs[1].seen != []
