"""What a replay may differ by from eager mode."""

import pytest
import torch
from torch import Tensor, nn

from lamina.errors import CheckError
from lamina.pipeline.graphed.state import Run, compare, rounding
from lamina.run import precision_mode

X, LINEAR = torch.ones(8), nn.Linear(2, 2)


def judged(
    graph: float, again: float = 1.0, told: float = 1.0, told_again: float = 0.0, autocast: torch.dtype | None = None
) -> str:
    """The ways in the order of their runs, where results are these multiples of those of the first eager run."""
    runs: list[str] = []

    def run(how: Run) -> list[Tensor]:
        runs.append(how)
        before = runs[:-1]
        first, second = {"eager": (1.0, again), "graph": (graph, graph), "told": (told, told_again or told)}[how]
        return [X * (second if how in before else first)]

    compare(run, "outputs", LINEAR, autocast)
    return " ".join(runs)


def test_a_replay_may_differ_by_a_sum_in_another_order() -> None:
    with precision_mode("fp32", autotune=False):
        assert judged(1 + 0.9e-5) == "eager eager graph"
        for other in (1 + 1.2e-5, torch.nan):
            with pytest.raises(CheckError, match="outputs by a CUDA graph differ"):
                judged(other)


def test_a_replay_may_differ_by_more_where_eager_runs_do() -> None:
    judged(1.03, again=1.01)
    with pytest.raises(CheckError):
        judged(1.05, again=1.01)


def test_a_replay_may_differ_by_the_rounding_of_products() -> None:
    linear, conv, lstm = nn.Linear(2, 2), nn.Sequential(nn.Conv2d(2, 2, 1)), nn.LSTM(2, 2)
    for precision, rounded in (("fp32", 2**-24), ("tf32", 2**-11)):
        with precision_mode(precision, autotune=False):
            assert {rounding(model) for model in (linear, conv, lstm)} == {rounded}
            assert rounding(linear, torch.bfloat16) == 2**-8
    assert rounding(nn.Linear(2, 2).half()) == rounding(linear, torch.float16) == 2**-11
    assert rounding(nn.ReLU()) == 0
    with precision_mode("tf32", autotune=False):
        judged(1 + 2**-12)
        with pytest.raises(CheckError):
            judged(1 + 2**-10)


def test_code_may_choose_other_kernels_in_a_capture_within_rounding() -> None:
    bf16 = torch.bfloat16
    with precision_mode("fp32", autotune=False):
        assert judged(1 + 2**-9, told=1 + 2**-9, autocast=bf16) == "eager eager graph told told graph"
        for graph, told, autocast in (
            (1 + 2**-9, 1.0, bf16),  # fixed at capture: eager code that is told does not do so
            (1 + 2**-9, 1 + 2**-9, None),  # farther than rounding explains
            (1 + 2**-7, 1 + 2**-7, bf16),
        ):
            with pytest.raises(CheckError, match="differ from eager mode"):
                judged(graph, told=told, autocast=autocast)


def test_kernels_that_are_chosen_in_a_capture_may_be_nondeterministic() -> None:
    bf16, told = torch.bfloat16, 1 + 2**-9
    with precision_mode("fp32", autotune=False):
        judged(told + 3e-3, told=told, told_again=told + 1e-3, autocast=bf16)
        for graph, again in ((told + 3e-3, told), (told + 5e-3, told + 1e-3)):
            with pytest.raises(CheckError, match="differ from eager mode"):
                judged(graph, told=told, told_again=again, autocast=bf16)
