"""Work on all GPUs, or on none, is told of piece by piece, in the order in which it was given."""

import pytest
import torch

from benchmarks.gpus import Rows, on_every_gpu


@pytest.mark.parametrize("gpus", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_all_that_is_done_is_told_in_the_order_of_the_pieces(gpus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not gpus:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    told = [[row["piece"] for row in rows] for rows in on_every_gpu(row_of, [3, 1, 2])]
    assert [len(some) for some in told] == [1, 2, 3]
    assert told[-1] == [3, 1, 2]
    assert all(some == [piece for piece in told[-1] if piece in some] for some in told)


def row_of(piece: int) -> Rows:
    return [{"piece": piece}]
