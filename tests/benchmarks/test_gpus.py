"""Work on all GPUs, or on none, is told of piece by piece, in the order in which it was given."""

import pytest
import torch

from benchmarks.gpus import Rows, on_every_gpu


@pytest.mark.parametrize("here", [False, True])  # or in processes, one at least
def test_all_that_is_done_is_told_in_the_order_of_the_pieces(here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0 if here else max(1, torch.cuda.device_count())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    told = [[row["piece"] for row in rows] for rows in on_every_gpu(row_of, [3, 1, 2])]
    assert [len(some) for some in told] == [1, 2, 3]
    assert told[-1] == [3, 1, 2]
    assert all(some == [piece for piece in told[-1] if piece in some] for some in told)


def row_of(piece: int) -> Rows:
    return [{"piece": piece}]
