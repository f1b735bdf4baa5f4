import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import CheckError, UnsupportedError, UsageError
from lamina.pipeline.graphed.step import UNSTEADY

Graphs = Callable[..., None]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def batches(count: int, rows: int = 6) -> list[tuple[Tensor, Tensor]]:
    own = torch.Generator().manual_seed(1)
    return [(torch.randn(rows, 4, generator=own), torch.randint(3, (rows,), generator=own)) for _ in range(count)]


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3)


def plain(model: nn.Module, optimizer: Any, data: Any, accumulate: int = 1, clip: float | None = None) -> list[float]:
    """The ordinary loop."""
    losses = []
    for i, (x, y) in enumerate(data):
        if i % accumulate == 0:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_steps_are_those_of_the_ordinary_loop(graphs: Graphs, accumulate: int, clip: float | None) -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    data = batches(12)
    mine, other = sgd(ours), sgd(theirs)
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine, clip_norm=clip, accumulate=accumulate)
    torch.manual_seed(7)
    losses = [step(x, y).item() for x, y in data]
    torch.manual_seed(7)
    assert losses == pytest.approx(plain(theirs, other, data, accumulate, clip), rel=1e-5)
    assert step.captured == 1 and step.taken == 12
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_compiled_model_takes_the_steps_of_the_ordinary_loop(graphs: Graphs) -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    mine, other = sgd(ours), sgd(theirs)
    graphs(ours, mine)
    fast: Any = torch.compile(ours, backend="aot_eager")
    step = lamina.graphed_step(fast, nn.functional.cross_entropy, mine)
    for seed, (x, y) in enumerate(batches(8)):
        torch.manual_seed(seed)
        loss = step(x, y)
        torch.manual_seed(seed)
        assert loss.item() == pytest.approx(plain(theirs, other, [(x, y)])[0], rel=1e-5)
    assert step.captured == 1
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_learning_rates_are_followed(graphs: Graphs) -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    mine, other = sgd(ours), sgd(theirs)
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.7) for each in (mine, other)]
    for seed, batch in enumerate(batches(8)):
        torch.manual_seed(seed)
        step(*batch)
        torch.manual_seed(seed)
        plain(theirs, other, [batch])
        for schedule in schedules:
            schedule.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b)
    assert step.captured == 1 and isinstance(mine.param_groups[0]["lr"], float)


def test_each_shape_has_a_graph_until_there_are_enough(graphs: Graphs, caplog: pytest.LogCaptureFixture) -> None:
    ours = network()
    mine = sgd(ours)
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine, graphs=2)
    for _ in range(4):
        for rows in (2, 3, 4):
            step(*batches(1, rows)[0])
    assert step.captured == 2
    assert caplog.text.count("run in eager mode") == 1


def test_a_change_of_a_hyperparameter_captures_again(graphs: Graphs) -> None:
    ours = network()
    mine = sgd(ours)
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
    for batch in batches(4):
        step(*batch)
    assert step.captured == 1
    mine.param_groups[0]["momentum"] = 0.5
    step(*batches(1)[0])
    assert step.captured == 0


def test_hyperparameters_that_keep_changing_leave_the_graph(graphs: Graphs, caplog: pytest.LogCaptureFixture) -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    mine, other = sgd(ours), sgd(theirs)
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
    for seed, batch in enumerate(batches(UNSTEADY + 6)):
        for each in (mine, other):
            each.param_groups[0]["momentum"] = 0.9 - 0.05 * seed
        torch.manual_seed(seed)
        step(*batch)
        torch.manual_seed(seed)
        plain(theirs, other, [batch])
    assert step.captured == 1 and "keep changing" in caplog.text
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_evaluation_between_steps_changes_nothing_of_the_graph(graphs: Graphs) -> None:
    ours = network()
    mine = sgd(ours)
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
    for batch in batches(4):
        step(*batch)
        ours.eval()
        ours.train()
    assert step.captured == 1


def test_a_value_fixed_at_capture_is_found_and_the_state_restored(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(nn.Module):
        """Its scale is computed once for each object: as Python code that capture fixes."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.scale: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            scale = x.abs().mean().detach() if self.scale is None else self.scale
            return scale * self.linear(x)  # type: ignore[no-any-return]

    ours = Stuck()
    mine = sgd(ours)
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
    recorded = step._record

    def fixed(batch: Any) -> Any:
        recording = recorded(batch)
        replay = recording.graph.replay

        def stuck() -> None:
            ours.scale = torch.tensor(0.5)
            replay()
            ours.scale = None

        recording.graph.replay = stuck  # type: ignore[method-assign]
        return recording

    monkeypatch.setattr(step, "_record", fixed)
    data = batches(3)
    for batch in data[:2]:
        step(*batch)
    before = [p.detach().clone() for p in ours.parameters()]
    with pytest.raises(CheckError, match="differ from eager mode"):
        step(*data[2])
    assert all(torch.equal(a, b) for a, b in zip(before, ours.parameters(), strict=True))
    assert step.captured == 0


def test_inputs_of_several_arguments(graphs: Graphs) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return scale * self.linear(x)  # type: ignore[no-any-return]

    for inputs in ((torch.randn(2, 4), torch.randn(2, 1)), {"x": torch.randn(2, 4), "scale": torch.randn(2, 1)}):
        ours = Two()
        mine = sgd(ours)
        graphs(ours, mine)
        step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
        losses = [step(inputs, torch.tensor([0, 2])).item() for _ in range(5)]
        assert losses[-1] < losses[0] and step.captured == 1


def test_an_optimizer_that_cannot_be_captured_runs_after_the_graph(graphs: Graphs) -> None:
    class Plain(torch.optim.Optimizer):
        def __init__(self, params: Any):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])

    ours = network()
    theirs = copy.deepcopy(ours)
    mine, other = Plain(ours.parameters()), Plain(theirs.parameters())
    graphs(ours, mine)
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
    for seed, batch in enumerate(batches(6)):
        torch.manual_seed(seed)
        step(*batch)
        torch.manual_seed(seed)
        plain(theirs, other, [batch])
    assert step.captured == 1
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_what_is_wrong_is_refused_with_what_to_do() -> None:
    model = network()
    with pytest.raises(UnsupportedError, match=r"found cpu; call model.to\('cuda'\)"):
        lamina.graphed_step(model, nn.functional.cross_entropy, sgd(model))
    with pytest.raises(UsageError, match="accumulate: expected at least 1, got 0"):
        lamina.graphed_step(model, nn.functional.cross_entropy, sgd(model), accumulate=0)
