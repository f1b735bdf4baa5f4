"""The monitor on models."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lamina.accelerate.training.sparsity_monitor import Monitor, Pace, Parameters, State, attach, calculator
from lamina.accelerate.training.sparsity_monitor.fused import relu_and_count
from lamina.accelerate.training.sparsity_monitor.modules import select_modules
from lamina.errors import UsageError

from ...waiting import no_waiting

QUICK = Parameters(history=2, stability=0.5, initial_period=4, duration=2, hibernation_period=16, sparse_enough=0.0)


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)
    )


def batch(size: int = 2) -> Tensor:
    return torch.randn(size, 3, 6, 6)


class Twice(nn.Module):
    """A ReLU that is called two times, as in a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.relu = nn.Linear(5, 6), nn.Linear(6, 7), nn.ReLU()
        self.same = self.relu

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.relu(self.second(self.relu(self.first(x))))
        return result


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_densities_are_those_of_the_maps(impl: Any) -> None:
    model = small()
    with Monitor(model, exhaustive=True, impl=impl) as monitor:
        expected = []
        for _ in range(3):
            x = batch()
            model(x)
            with torch.no_grad(), monitor.paused():
                hidden = F.relu(model[0](x))
                features = F.relu(model[3](hidden.flatten(1)))
            expected += [(hidden != 0).float().mean(), (features != 0).float().mean()]
    assert [found.density for found in monitor.observations] == pytest.approx([float(e) for e in expected])
    assert [(found.name, found.iteration) for found in monitor.observations] == [
        (name, iteration) for iteration in range(3) for name in ("1", "4")
    ]
    assert [(found.rows, found.columns) for found in monitor.observations[:2]] == [(4, 32), (8, 2)]


def test_training_is_not_changed() -> None:
    def losses(watch: bool) -> list[float]:
        torch.manual_seed(1)
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        monitor = Monitor(model, exhaustive=True) if watch else None
        found = []
        for _ in range(5):
            loss = F.cross_entropy(model(batch()), torch.tensor([0, 1]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert monitor is None or len(monitor.observations) == 8  # the last iteration's are taken in by the next
        return found

    assert losses(True) == losses(False)


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("inplace", [False, True])
def test_relu_that_counts_is_relu(inplace: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculator, "MIN_FUSED_BYTES", 1)

    def run(**options: Any) -> tuple[list[Tensor], list[Any]]:
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.ReLU(inplace),
            nn.Conv2d(4, 5, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(45, 6),
            nn.ReLU(),
        ).to(memory_format=torch.channels_last)
        with Monitor(model, exhaustive=True, **options) as monitor:
            x = batch().requires_grad_()
            y = model(x)
            (y * torch.randn(y.shape)).sum().backward()
            assert "forward" not in vars(model[1])
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert x.grad is not None
        return [y.detach(), x.grad, *gradients], monitor.observations

    plain, expected = run(impl="torch")
    fused, found = run(impl="triton", fuse=True)
    assert found == expected and len(found) == 3
    torch.testing.assert_close(fused, plain)


@pytest.mark.usefixtures("where_kernels_run")
def test_only_relu_that_the_kernel_can_read_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    fused: list[str] = []

    def spy(x: Tensor, inplace: bool, count: Any) -> Tensor:
        fused.append("x")
        return relu_and_count(x, inplace, count)

    monkeypatch.setattr(attach, "relu_and_count", spy)
    monkeypatch.setattr(calculator, "MIN_FUSED_BYTES", 1)
    relu, elsewhere = nn.ReLU(), torch.randn(2, 3, 8, 8)[:, :, ::2, 1:6]  # rows and columns cannot be one axis
    with Monitor(model := nn.Sequential(relu), exhaustive=True, impl="triton", fuse=True) as monitor:
        for x in (elsewhere, elsewhere.contiguous(), torch.randn(0, 3, 2, 2)):
            assert torch.equal(model(x), x.relu())
    assert len(fused) == 1
    assert [found.nonzeros for found in monitor.observations] == [int((elsewhere > 0).sum())] * 2


@pytest.mark.usefixtures("where_kernels_run")
def test_a_small_map_is_not_worth_fusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculator, "MIN_FUSED_BYTES", 4 * 2 * 4 * 16)  # bytes of the first map of two
    model, made = small(), []
    for module in (model[1], model[4]):
        module.register_forward_hook(lambda *args: made.append(type(args[-1].grad_fn).__name__))
    with Monitor(model, exhaustive=True, impl="triton", fuse=True) as monitor:
        model(batch())
    assert made == ["_ReLUAndCountBackward", "ReluBackward0"]
    assert [found.name for found in monitor.observations] == ["1", "4"]


class Changed(nn.Module):
    """Something changes what a ReLU gave before the forward pass ends, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.change = nn.Linear(6, 8), nn.ReLU(), True

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.first(x))
        return y.add_(1) if self.change else y


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_map_that_is_changed_in_place_is_counted_as_it_was(impl: Any) -> None:
    model, x = Changed(), torch.randn(4, 6)
    with torch.no_grad():
        nonzeros = int((model.first(x) > 0).sum())
    with Monitor(model, exhaustive=True, impl=impl) as monitor:
        for change in (False, True, True):
            model.change = change
            model(x)
    kept = [(found.iteration, found.nonzeros) for found in monitor.observations]
    # By the kernel it would be counted at the end, with others: the first time that it has changed nothing is known.
    assert kept == [(i, nonzeros) for i in ((0, 1, 2) if impl == "torch" else (0, 2))]


@pytest.mark.usefixtures("where_kernels_run")
def test_maps_in_any_order_of_memory_are_counted_together() -> None:
    model = nn.Sequential(nn.Conv2d(3, 40, 3), nn.ReLU(), nn.Conv2d(40, 5, 2), nn.ReLU(), nn.Flatten(1), nn.ReLU())
    x = batch(3).requires_grad_()
    counts = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = model.to(memory_format=layout)
        for impl in ("torch", "triton"):
            with Monitor(model, exhaustive=True, impl=impl) as monitor:  # type: ignore[arg-type]
                for _ in range(2):
                    model(x.to(memory_format=layout))
            counts.append(monitor.observations)
    assert counts[0] == counts[1] == counts[2] == counts[3] and len(counts[0]) == 6


def test_periods_and_durations_are_kept() -> None:
    model = small()
    with Monitor(model, replace(QUICK, stability=1e-9, history=9), paces={"4": Pace(10, 1)}) as monitor:
        for _ in range(20):
            model(batch())
    seen = {name: [found.iteration for found in monitor.observations if found.name == name] for name in ("1", "4")}
    assert seen == {"1": [0, 1, 4, 5, 8, 9, 12, 13, 16, 17], "4": [0, 10]}


def test_maps_with_their_own_schedule_stay_awake_in_hibernation() -> None:
    model, x = small(), batch()
    with Monitor(model, QUICK, paces={"4": Pace.parse("every:3")}) as monitor:
        for _ in range(60):
            model(x)
    shared, own = monitor.report()
    assert (shared.state, shared.period, shared.schedule) == (State.HIBERNATE, 16, "spartan:4:2")
    assert (own.state, own.period, own.schedule) == (State.ACTIVE, 3, "every:3:1")
    assert [found.iteration for found in monitor.observations if found.name == "4"] == [*range(0, 60, 3)]


def test_a_schedule_that_fits_nothing_is_refused() -> None:
    Monitor(small(), paces={"[14]": Pace(5, 1), "4:2": Pace(5, 1)}).detach()
    with pytest.raises(UsageError, match="'features.*' fits no monitored module: expected one of: 1, 4"):
        Monitor(small(), paces={"features.*": Pace(5, 1)})


def test_a_stable_model_is_left_alone() -> None:
    model, x = small(), batch()
    with Monitor(model, QUICK) as monitor:
        for _ in range(60):
            model(x)
    assert monitor.scheduler.state is State.HIBERNATE
    late = [found.iteration for found in monitor.observations if found.iteration >= 28]
    assert late
    assert len(late) == 2 * 2 * len({i // 16 for i in late})
    first, second = monitor.report()
    assert (first.name, first.state, first.period, first.duration) == ("1", State.HIBERNATE, 16, 2)
    assert first.next == second.next
    assert first.density == pytest.approx(monitor.observations[0].density)
    assert "hibernate" in first.why


def test_evaluation_is_neither_observed_nor_counted() -> None:
    model = small()
    with Monitor(model, exhaustive=True) as monitor:
        model.eval()
        model(batch())
        model.train()
        model(batch())
    assert [found.iteration for found in monitor.observations] == [0, 0]


def test_each_call_of_a_shared_module_is_a_map() -> None:
    model = Twice()
    with Monitor(model, exhaustive=True) as monitor:
        model(torch.randn(3, 5))
        model(torch.randn(3, 5))
    assert [(found.name, found.rows) for found in monitor.observations] == [("relu", 6), ("relu:2", 7)] * 2
    assert [each.name for each in monitor.report()] == ["relu", "relu:2"]
    assert monitor.report()[0].why == "observed at every iteration"


def test_modules_can_be_named_once() -> None:
    with Monitor(model := Twice(), modules=["first", "same", "relu"], exhaustive=True) as monitor:
        model(torch.randn(3, 5))
    assert [found.name for found in monitor.observations] == ["first", "same", "same:2"]
    assert monitor.observations[0].density == 1


def test_a_relu_alone_is_a_model() -> None:
    with Monitor(relu := nn.ReLU()) as monitor:
        relu(torch.tensor([[1.0, -1.0]]))
    assert monitor.observations[0].density == 0.5


def test_recomputation_in_backward_is_no_call() -> None:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return result

    with Monitor(model := Recomputed(), exhaustive=True) as monitor:
        model(batch().requires_grad_()).sum().backward()
    assert [found.name for found in monitor.observations] == ["inner.1", "inner.4"]


def test_a_failed_forward_leaves_the_monitor_working() -> None:
    with Monitor(model := small(), exhaustive=True) as monitor:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 3, 9, 9))
        model(batch())
    assert [found.iteration for found in monitor.observations] == [0, 1, 1]


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_batches_of_other_sizes_and_empty_ones(impl: Any) -> None:
    with Monitor(model := small(), exhaustive=True, impl=impl) as monitor:
        expected = []
        for iteration, size in enumerate((2, 0, 5, 2)):
            x = batch(size)
            model(x)
            with torch.no_grad():
                hidden = F.relu(model[0](x))
                maps = hidden, F.relu(model[3](hidden.flatten(1)))
            sizes = 16 * size, size
            pairs = zip(maps, sizes, strict=True)
            expected += [(iteration, columns, int((y != 0).sum())) for y, columns in pairs if size]
    assert [(found.iteration, found.columns, found.nonzeros) for found in monitor.observations] == expected


def test_nan_counts_as_set() -> None:
    with Monitor(model := nn.ReLU()) as monitor:
        model(torch.tensor([[float("nan"), -1.0]]))
    assert monitor.observations[0].nonzeros == 1


def test_detached_hooks_are_gone() -> None:
    model = small()
    with Monitor(model, exhaustive=True) as monitor:
        model(batch())
    before = len(monitor.take())
    model(batch())
    assert (before, monitor.take()) == (2, [])
    for module in model.modules():
        assert not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def test_modules_have_hooks_only_while_they_are_observed() -> None:
    model = small()
    hooked: list[bool] = []

    def look(*_: Any) -> None:
        hooked.append("forward" in vars(model[1]))
        assert not (model._forward_hooks or model._forward_pre_hooks)
        assert bool(model[3]._forward_hooks) == hooked[-1]

    model[0].register_forward_hook(look)
    with Monitor(model, replace(QUICK, stability=1e-9), modules=["1", "3"]):
        for _ in range(9):
            model(batch())
            assert "forward" not in vars(model[1])
    assert hooked == [iteration % 4 < 2 for iteration in range(9)]


def test_results_that_decide_nothing_are_taken_in_together_or_when_asked_for() -> None:
    def waiting(monitor: Monitor) -> list[int]:
        found = []
        for _ in range(20):
            monitor.model(batch())
            found.append(len(monitor._calculator.in_flight))
        return found

    with Monitor(small(), exhaustive=True) as monitor:
        assert waiting(monitor) == [
            iteration % attach.BATCHED_ITERATIONS == attach.BATCHED_ITERATIONS - 1 for iteration in range(20)
        ]
        latest = monitor.latest("4")
        assert latest is not None and latest.iteration == 18
        assert len(monitor.observations) == 2 * 19 and monitor.latest("2") is None
        assert monitor.report()[0].history == tuple(each.density for each in monitor.observations[-20::2])
        assert waiting(monitor) == [
            iteration % attach.BATCHED_ITERATIONS == attach.BATCHED_ITERATIONS - 1 for iteration in range(20)
        ]
    with Monitor(small(), QUICK) as monitor:
        assert max(waiting(monitor)) == 1


def test_monitors_do_not_hide_maps_from_one_another() -> None:
    model = small()
    now_and_then = replace(QUICK, stability=1e-9, history=9)
    with Monitor(model, now_and_then) as first, Monitor(model, exhaustive=True) as second:
        third = Monitor(model, exhaustive=True)
        for _ in range(9):
            model(batch())
        first.detach()  # before those that were attached later
        model(batch())
        third.finish()
    third.detach()
    assert "forward" not in vars(model[1])
    model(batch())
    for monitor, iterations in ((first, (0, 1, 4, 5, 8)), (second, range(10)), (third, range(10))):
        assert [(each.iteration, each.name) for each in monitor.observations] == [
            (iteration, name) for iteration in iterations for name in ("1", "4")
        ]


def test_a_resumed_monitor_goes_on() -> None:
    inputs = [batch() for _ in range(40)]

    def run(model: nn.Module, monitor: Monitor, part: list[Tensor]) -> list[tuple[str, int]]:
        for x in part:
            model(x)
        monitor.finish()
        return [(found.name, found.iteration) for found in monitor.take()]

    torch.manual_seed(3)
    model = small()
    with Monitor(model, QUICK) as whole:
        straight = run(model, whole, inputs)
    with Monitor(model, QUICK) as first:
        begun = run(model, first, inputs[:17])
        saved = json.loads(json.dumps(first.state_dict()))
    with Monitor(model, QUICK) as second:
        second.load_state_dict(saved)
        assert begun + run(model, second, inputs[17:]) == straight
    assert second.state_dict() == whole.state_dict()


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Say that a CUDA graph is being captured; what a forward launches is then run at once instead."""
    now = [False]
    monkeypatch.setattr(attach, "capturing", lambda: now[0])
    return lambda capturing: now.__setitem__(0, capturing)


def test_a_captured_iteration_is_counted_and_decided_on_outside(capture: Callable[[bool], None]) -> None:
    model, x = small(), batch()
    monitor = Monitor(model, QUICK)
    for _ in range(3):
        model(x)
    capture(True)
    model(x)
    capture(False)
    assert monitor.iteration == 2
    due = []
    for _ in range(9):
        with monitor.replay() as wanted:
            due.append(wanted)
    monitor.finish()
    # The first two were observed eagerly; the processes that begin at 4 and 8 are followed by one at 16.
    assert due == [iteration in (4, 5, 8, 9) for iteration in range(3, 12)]
    assert [found.iteration for found in monitor.observations if found.name == "1"] == [0, 1, 4, 5, 8, 9]
    assert {found.density for found in monitor.observations if found.name == "1"} == {monitor.observations[0].density}


def test_capturing_needs_memory_first(capture: Callable[[bool], None]) -> None:
    monitor = Monitor(model := small(), QUICK)
    with pytest.raises(UsageError, match="captured"), monitor.replay():
        pass
    capture(True)
    with pytest.raises(UsageError, match="expected an iteration before"):
        model(batch())


class QuickGELUActivation(nn.Module):
    """An activation of another package."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


@pytest.mark.parametrize(
    ("layers", "monitored"),
    [
        ((nn.Linear(2, 2), nn.ReLU(), nn.GELU()), ["1"]),
        ((nn.Linear(2, 2), nn.SiLU(), QuickGELUActivation(), nn.Softmax(1)), ["1", "2"]),
        ((nn.Linear(2, 2), nn.LayerNorm(2)), ["0", "1"]),
    ],
)
def test_models_without_relu_have_their_other_activations_or_layers_monitored(
    layers: tuple[nn.Module, ...], monitored: list[str]
) -> None:
    assert list(select_modules(nn.Sequential(*layers), None)) == monitored
    assert list(select_modules(nn.Linear(2, 2), None)) == [""]


def test_misuse_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'relu'"):
        Monitor(Twice(), modules=["rely"])
    with pytest.raises(UsageError, match="at least one"):
        Monitor(Twice(), modules=[])
    Monitor(model := nn.LSTM(2, 2), modules=[""])
    with pytest.raises(UsageError, match="returns a tensor, got tuple"):
        model(torch.zeros(1, 1, 2))


@pytest.mark.gpu
@pytest.mark.parametrize(("impl", "fuse"), [("torch", False), ("triton", False), ("triton", True)])
def test_the_training_loop_never_waits(impl: Any, fuse: bool) -> None:
    model, x, y = small().cuda(), batch(64).cuda(), torch.arange(64, device="cuda") % 2
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Monitor(model, exhaustive=True, impl=impl, fuse=fuse) as monitor:
        model(x)  # memory and kernels are made
        with no_waiting():
            for _ in range(50):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert len(monitor.observations) == 51 * 2


@pytest.mark.gpu
def test_a_cuda_graph_counts_at_every_replay() -> None:
    model, static = nn.Sequential(nn.ReLU()), batch(8).cuda()
    with Monitor(model, exhaustive=True) as monitor:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(static)
        torch.cuda.current_stream().wait_stream(side)
        monitor.finish()
        monitor.take()
        model(static)  # its counts are still on the device when a graph counts
        expected = [int((static > 0).sum())]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(static)
        for density in (0.1, 0.5, 0.9):
            static.uniform_().sub_(1 - density)
            with monitor.replay() as due:
                assert due
                graph.replay()
            expected.append(int((static > 0).sum()))
    assert [found.nonzeros for found in monitor.observations] == expected
    assert [found.iteration for found in monitor.observations] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "model: expected an nn.Module, got None"),
        ({"parameters": {"history": 3}}, "parameters: expected Parameters, got {'history': 3}"),
        ({"parameters": 0}, "parameters: expected Parameters, got 0"),
        ({"modules": 5}, "modules: expected names of modules, got 5"),
        ({"modules": [None]}, "modules: expected names of modules, got None"),
        ({"modules": [nn.ReLU()]}, "modules: expected names of modules, got ReLU()"),
        ({"paces": "every:10"}, "paces: expected a Pace by name, such as {'features.*': Pace(10)}, got 'every:10'"),
        ({"paces": {"1": "every:9"}}, "paces: expected a Pace by name, such as Pace.parse('every:10'), got 'every:9'"),
        ({"paces": {1: Pace(10)}}, "paces: expected names of maps, got 1"),
        ({"channels": "1"}, "channels: expected the dimension of channels, got '1'"),
        ({"channels": None}, "channels: expected the dimension of channels, got None"),
    ],
)
def test_wrong_arguments_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    model = small()
    with pytest.raises(UsageError) as refused:
        Monitor(**{"model": model, **settings})
    assert str(refused.value) == f"monitor: {message}"
    assert "forward" not in vars(model)


def test_channels_on_no_axis_of_a_map_are_refused() -> None:
    model = small()
    Monitor(model, channels=7)
    with pytest.raises(UsageError, match="monitor: expected channels on an axis after the first, got axis 7 of"):
        model(batch())


def test_parameters_of_another_type_are_refused_by_name() -> None:
    wrong: Any = "x"
    for expected, make in {
        "stability: expected a number, got 'x'": lambda: Parameters(stability=wrong),
        "history: expected a whole number, got 'x'": lambda: Parameters(history=wrong),
        "duration: expected a whole number, got 'x'": lambda: Parameters(duration=wrong),
        "period: expected a whole number, got 1.5": lambda: Pace(period=1.5),  # type: ignore[arg-type]
        "longest: expected a whole number, got 'x'": lambda: Pace(10, 1, "adaptive", wrong),
    }.items():
        with pytest.raises(UsageError, match=f"^monitor: {expected}$"):
            make()
    with pytest.raises(UsageError, match="expected every:PERIOD, .*, got None"):
        Pace.parse(None)  # type: ignore[arg-type]
