"""All-reduce between processes: real ones on the CPU."""

import json
from pathlib import Path

import pytest
import torch
from tests import forked

from lamina.errors import LaminaError, MissingError, UsageError
from lamina.measure import allreduce_times, collectives

CPU = torch.device("cpu")


def test_every_exchange_has_its_samples() -> None:
    small, large = allreduce_times([[3], [100_000, 7]], torch.float32, CPU, 2, samples=4)
    assert small.n == large.n == 4 and small.clock == "wall" and small.median_us > 0


def test_exchanges_are_interleaved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order: list[int] = []

    def sample_us(sizes: list[int], *_: object) -> float:
        order.extend(sizes)
        return float(sizes[0])

    monkeypatch.setattr(collectives, "_calls", lambda *_: 1)
    monkeypatch.setattr(collectives, "_sample_us", sample_us)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    collectives._rank(0, [[1], [2], [3]], torch.float32, "cpu", 1, 3, str(tmp_path))
    assert order == [1, 2, 3, 3, 2, 1, 1, 2, 3]
    assert json.loads((tmp_path / "samples.json").read_text()) == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_a_process_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "spawn", forked.spawn)
    with pytest.raises(LaminaError, match="all-reduce between 2 processes failed"):
        allreduce_times([[-1]], torch.float32, CPU, 2)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="at least 2 processes"):
        allreduce_times([[3]], torch.float32, CPU, 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(MissingError, match="expected as many GPUs, found 1"):
        allreduce_times([[3]], torch.float32, torch.device("cuda"), 2)


def test_a_wrong_sum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: tensor)
    with pytest.raises(LaminaError, match="a sum over 2 processes is wrong"):
        collectives._calls([3], torch.float32, CPU, 0, 2)
