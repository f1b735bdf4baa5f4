from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import UnsupportedError, UsageError

Graphs = Callable[..., None]


class Several(nn.Module):
    """Outputs of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, *, double: bool = False) -> dict[str, object]:
        y = self.linear(x)
        return {"y": 2 * y if double else y, "pair": (y.sum(), "name"), "none": None}


def test_inference_passes_are_those_of_the_model(graphs: Graphs) -> None:
    model = Several().eval()
    graphs(model)
    fast = lamina.graphed(model)
    results = []
    for _ in range(5):
        x = torch.randn(2, 4)
        with torch.inference_mode():
            results.append((fast(x), model(x)))
    assert fast.captured == 1
    for ours, theirs in results:  # fresh tensors: a later call does not overwrite them
        torch.testing.assert_close(ours["y"], theirs["y"])
        torch.testing.assert_close(ours["pair"][0], theirs["pair"][0])
        assert ours["pair"][1] == "name" and ours["none"] is None


def test_an_example_is_captured_at_once_and_leaves_buffers_alone(graphs: Graphs) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    graphs(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = lamina.graphed(model, torch.randn(3, 4))
    assert fast.captured == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_values_that_are_no_tensors_choose_the_graph(graphs: Graphs) -> None:
    model = Several().eval()
    graphs(model)
    fast = lamina.graphed(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(4):
            for double in (False, True):
                torch.testing.assert_close(fast(x, double=double)["y"], model(x, double=double)["y"])
    assert fast.captured == 2


def test_another_mode_captures_again(graphs: Graphs) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    graphs(model)
    fast = lamina.graphed(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        assert fast.captured == 1
        fast.train()
        fast(x)
        assert fast.captured == 0 and model.training


def test_further_signatures_run_in_eager_mode(graphs: Graphs, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 4).eval()
    graphs(model)
    fast = lamina.graphed(model, graphs=1)
    with torch.no_grad():
        for _ in range(4):
            for rows in (1, 2):
                x = torch.randn(rows, 4)
                torch.testing.assert_close(fast(x), model(x))
    assert fast.captured == 1 and caplog.text.count("run in eager mode") == 1


def test_parameters_are_those_of_the_model(graphs: Graphs) -> None:
    model = nn.Linear(4, 4)
    assert [*lamina.graphed(model).parameters()] == [*model.parameters()]


def test_what_is_wrong_is_refused_with_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match=r"found cpu; call model.to\('cuda'\)"):
        lamina.graphed(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="found no tensors"):
        lamina.graphed(nn.ReLU())
    with pytest.raises(UsageError, match=r"model: expected a torch\.nn\.Module, got function"):
        lamina.graphed(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="graphs: expected at least 1, got 0"):
        lamina.graphed(nn.Linear(2, 2), graphs=0)
