"""Choices from given times: pure, remembered, and dense where dense wins."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lamina.accelerate.methods.circulant.dispatch import Dispatcher, calibrate, calibrate_model, decide, question
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv1d, BlockCirculantLinear
from lamina.errors import MissingError, UnsupportedError, UsageError

HERE = {"device": "a GPU", "torch": "2"}


@pytest.mark.parametrize(
    ("times", "impl", "reason"),
    [
        ({"dense": 25.0, "kernel": 9.5, "expand": 12.0}, "kernel", "kernel: 9.5 us < expand 12 us, dense 25 us"),
        ({"dense": 4.1, "kernel": 9.25}, "dense", "dense: 4.1 us < kernel 9.25 us"),
        ({"dense": 10.0, "expand": 9.9}, "dense", "dense: 10 us; expand 9.9 us, less than 2% faster"),
        ({"kernel": 3.0}, "kernel", "kernel: 3 us"),
    ],
)
def test_decision(times: dict[str, float], impl: str, reason: str) -> None:
    choice = decide(times)
    assert (choice.impl, choice.reason) == (impl, reason)
    assert choice.times_us == times


@pytest.mark.parametrize("times", [{}, {"dense": 0.0}, {"dense": float("nan")}, {"dense": float("inf")}])
def test_no_decision_without_times(times: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="times"):
        decide(times)


class Stopwatch:
    """A timer that knows the answer."""

    def __init__(self, times: list[float]) -> None:
        self.times, self.calls = times, 0

    def __call__(self, run: Callable[[], object]) -> float:
        run()
        self.calls += 1
        return self.times[self.calls - 1]


def refuse() -> object:
    raise UnsupportedError("not for this shape")


def test_measures_once_and_remembers(tmp_path: Path) -> None:
    timer = Stopwatch([5.0, 2.0])
    candidates = {"dense": int, "kernel": float, "expand": refuse}
    first = Dispatcher(tmp_path / "cache", timer, HERE).choose("layer", candidates)
    assert (first.impl, timer.calls, first.refusals) == ("kernel", 2, {"expand": "not for this shape"})
    assert Dispatcher(tmp_path / "cache", timer, HERE).choose("layer", candidates) == first
    assert timer.calls == 2
    stored = json.loads((tmp_path / "cache" / "circulant_choices.json").read_text())
    assert stored["choices"]["layer"]["provenance"] == HERE


def test_another_machine_measures_again(tmp_path: Path) -> None:
    candidates: dict[str, Callable[[], object]] = {"dense": int, "kernel": float}
    Dispatcher(tmp_path, Stopwatch([5.0, 2.0]), HERE).choose("layer", candidates)
    other = Dispatcher(tmp_path, Stopwatch([2.0, 5.0]), {**HERE, "device": "another"})
    assert other.choose("layer", candidates).impl == "dense"


def test_no_candidate_runs(tmp_path: Path) -> None:
    def missing() -> object:
        raise MissingError("no GPU")

    with pytest.raises(UsageError, match="no GPU"):
        Dispatcher(tmp_path, Stopwatch([]), HERE).choose("layer", {"kernel": missing})


@pytest.mark.parametrize("text", ["", "[]", '{"choices": {"layer": {}}}', '{"choices": 3}'])
def test_a_damaged_file_is_not_overwritten(text: str, tmp_path: Path) -> None:
    (tmp_path / "circulant_choices.json").write_text(text)
    with pytest.raises(UsageError, match="delete it"):
        Dispatcher(tmp_path, Stopwatch([]), HERE)
    assert (tmp_path / "circulant_choices.json").read_text() == text


@pytest.mark.usefixtures("where_kernels_run")
def test_calibration_sets_the_layer(tmp_path: Path) -> None:
    layer = BlockCirculantLinear(6, 5, 4)
    x, numbers = torch.randn(2, 6), torch.get_rng_state()
    choice = calibrate(layer, x, Dispatcher(tmp_path, Stopwatch([9.0, 3.0, 6.0]), HERE))
    assert layer.impl == choice.impl == "expand"
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert torch.equal(torch.get_rng_state(), numbers)


@pytest.mark.usefixtures("where_kernels_run")
def test_calibration_of_a_frozen_convolution(tmp_path: Path) -> None:
    layer = BlockCirculantConv1d(4, 4, 3, block_size=2).requires_grad_(False)
    choice = calibrate(layer, torch.randn(1, 4, 5), Dispatcher(tmp_path, Stopwatch([9.0, 3.0, 6.0]), HERE))
    assert layer.impl == choice.impl == "expand"


@pytest.mark.usefixtures("where_kernels_run")
def test_calibration_passes_over_what_does_not_take_the_type(tmp_path: Path) -> None:
    layer = BlockCirculantConv1d(4, 4, 3, block_size=2).double()
    choice = calibrate(layer, torch.randn(1, 4, 5).double(), Dispatcher(tmp_path, Stopwatch([9.0, 3.0]), HERE))
    assert layer.impl == "dense"
    assert "float64" in choice.refusals["expand"]


def test_questions_differ_where_times_may() -> None:
    layer, x = BlockCirculantLinear(8, 8, 4), torch.randn(4, 8)
    keys = {question(layer, x), question(layer, x[:2]), question(layer, x.bfloat16()),
            question(layer, x.T.contiguous().T), question(BlockCirculantLinear(8, 8, 2), x),
            question(BlockCirculantLinear(8, 8, 4).requires_grad_(False), x)}  # fmt: skip
    with torch.autocast("cpu", torch.bfloat16):
        keys.add(question(layer, x))
    assert len(keys) == 6  # under autocast a wide input computes as a narrow one
    layer.impl = "dense"
    assert question(layer, x) in keys


@pytest.mark.usefixtures("where_kernels_run")
def test_every_layer_of_a_model_is_calibrated_for_what_reaches_it(tmp_path: Path) -> None:
    model = torch.nn.Sequential(BlockCirculantLinear(8, 6, 2), torch.nn.ReLU(), BlockCirculantLinear(6, 4, 2))
    timer = Stopwatch([9.0, 3.0, 6.0] * 2)
    dispatcher = Dispatcher(tmp_path, timer, HERE)
    choices = calibrate_model(model, torch.zeros(3, 8), dispatcher)
    assert [*choices] == ["0", "2"]
    assert [model[0].impl, model[2].impl] == [choices["0"].impl, choices["2"].impl] == ["expand"] * 2
    assert all("(3, " in asked for asked in json.loads(dispatcher.path.read_text())["choices"])
