"""What a replay may differ by from eager mode."""

import pytest
import torch

from lamina.errors import CheckError
from lamina.pipeline.graphed.state import State, judge

X = torch.ones(8)


def never() -> list[torch.Tensor]:
    raise AssertionError("a run from a perturbed state is not needed")


def test_a_replay_may_differ_by_a_sum_in_another_order() -> None:
    judge([X * (1 + 0.9e-5)], [X], [X], never, "outputs")
    for other in (X * (1 + 1.2e-5), X * torch.nan):
        with pytest.raises(CheckError, match="outputs by a CUDA graph differ"):
            judge([other], [X], [X], lambda: [X * (1 + 2e-6)], "outputs")


def test_a_replay_may_differ_by_more_where_eager_runs_do() -> None:
    judge([X * 1.03], [X], [X * 1.01], never, "outputs")
    with pytest.raises(CheckError):
        judge([X * 1.05], [X], [X * 1.01], lambda: [X], "outputs")


def test_a_replay_may_differ_by_more_where_one_ulp_does() -> None:
    judge([X * (1 + 3.5e-5)], [X], [X], lambda: [X * (1 + 1e-5)], "outputs")
    for other, perturbed in ((X * (1 + 4.5e-5), X * (1 + 1e-5)), (X * 2, X * torch.inf), (X * 2, X * torch.nan)):
        with pytest.raises(CheckError, match="by one ulp"):
            judge([other], [X], [X], lambda perturbed=perturbed: [perturbed], "outputs")  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_perturbed_state_is_one_ulp_away_and_changes_are_counted_from_it(dtype: torch.dtype) -> None:
    values, count = torch.tensor([[1.5, -1.5, 0.0], [3.0, 5.0, -7.0]], dtype=dtype), torch.tensor([3])
    before = values.clone()
    state = State([values, count], torch.device("cpu"))
    state.restore(perturbed=True)
    assert torch.equal(values[0, 2], before[0, 2]) and int(count) == 3
    steps = ((values - before) / before).flatten().abs() / torch.finfo(dtype).eps
    assert all(0.5 <= step <= 1.5 for step in steps[[0, 1, 3, 4, 5]])
    values += 1
    error = (state.changes(perturbed=True)[0] - 1).abs().max()
    assert error <= 8 * torch.finfo(dtype).eps
    state.restore()
    assert torch.equal(values, before)
