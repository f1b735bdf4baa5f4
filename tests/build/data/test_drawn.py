"""Synthetic data of several inputs: the same in every epoch, other in each split, over all ranks the whole."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.build.data import Drawn, batches
from lamina.errors import UsageError


def draw(batch: int, seed: int) -> tuple[tuple[Tensor, ...], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, 3, generator=generator), torch.ones(batch, 2)), torch.arange(batch)


DATA = Drawn(draw, "train", 10, ("a", "b"))


def firsts(data: Drawn = DATA, epoch: int = 0, **options: Any) -> list[Tensor]:
    return [x[0] for x, _ in batches(data, (3,), 4, 0, epoch, **options)]


def test_every_epoch_has_the_same_batches_and_a_resumed_one_the_last_of_them() -> None:
    first = firsts()
    assert [len(x) for x in first] == [4, 4, 2]
    assert all(torch.equal(x, y) for x, y in zip(first, firsts(epoch=3), strict=True))
    assert all(torch.equal(x, y) for x, y in zip(first[1:], firsts(start=1), strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], firsts(DATA.part("test", 8))[0]) and len(firsts(DATA.part("test", 8))) == 2


def test_ranks_draw_other_samples() -> None:
    ranks = [firsts(rank=rank, world_size=2) for rank in range(2)]
    assert [[len(x) for x in rank] for rank in ranks] == [[4, 1], [4, 1]]
    assert not torch.equal(ranks[0][0], ranks[1][0])


def test_random_inputs_cannot_be_augmented() -> None:
    with pytest.raises(UsageError, match="leave out --augment and --cutout"):
        batches(DATA, (3,), 4, 0, 0, augment=True)
