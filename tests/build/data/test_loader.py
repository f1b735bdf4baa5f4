from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch import Tensor

from lamina.build.data import Dataset, as_batch, loader, steps, synthetic
from lamina.build.data.dataset import Samples, dataset
from lamina.errors import UsageError

ITEMS = 22


@pytest.fixture
def data() -> Dataset:
    x = np.random.default_rng(0).integers(256, size=(ITEMS, 1, 6, 5)).astype(np.uint8)
    return dataset("images", "train", Samples(x, np.arange(ITEMS), tuple(map(str, range(ITEMS)))))


def labels(batches: object) -> list[list[int]]:
    return [y.tolist() for _, y in batches]


def flat(batches: object) -> list[int]:
    return list(chain.from_iterable(labels(batches)))


def equal(one: object, other: object) -> bool:
    return all(torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other, strict=True))


def test_an_epoch_visits_every_sample_once(data: Dataset) -> None:
    batches = list(loader(data, None, 8, seed=0, epoch=0))
    assert [len(y) for _, y in batches] == [8, 8, 6]
    assert sorted(flat(batches)) == list(range(ITEMS))
    assert len(batches) == steps(ITEMS, 8)


def test_seed_and_epoch_alone_decide_the_order(data: Dataset) -> None:
    order = flat(loader(data, None, 8, seed=3, epoch=2))
    torch.rand(7)
    np.random.rand(7)
    assert flat(loader(data, None, 5, seed=3, epoch=2)) == order
    assert flat(loader(data, None, 8, seed=3, epoch=1)) != order
    assert flat(loader(data, None, 8, seed=2, epoch=2)) != order
    assert flat(loader(data, None, 8, seed=3, epoch=2, shuffle=False)) == list(range(ITEMS))


@pytest.mark.parametrize("cutout", [0, 3])
@pytest.mark.parametrize("augment", [False, True])
def test_an_interrupted_epoch_resumes_exactly(data: Dataset, augment: bool, cutout: int) -> None:
    whole = list(loader(data, None, 4, seed=1, epoch=5, augment=augment, cutout=cutout))
    resumed = list(loader(data, None, 4, seed=1, epoch=5, augment=augment, cutout=cutout, start=3))
    assert equal(resumed, whole[3:])


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("augment", [False, True])
def test_ranks_together_see_what_one_process_sees(data: Dataset, world_size: int, augment: bool) -> None:
    ranks = [
        list(loader(data, None, 2, seed=1, epoch=0, augment=augment, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    single = list(loader(data, None, 2 * world_size, seed=1, epoch=0, augment=augment))
    assert {len(batches) for batches in ranks} == {steps(ITEMS, 2, world_size)}
    for step, (x, y) in enumerate(single[:-1]):
        dealt = torch.stack([batches[step][0] for batches in ranks], dim=1).flatten(0, 1)
        assert torch.equal(dealt, x)
        assert torch.equal(torch.stack([batches[step][1] for batches in ranks], dim=1).flatten(), y)


@pytest.mark.parametrize("world_size", [3, 4, 5, 50])
def test_ranks_have_equal_steps_and_cover_every_sample(data: Dataset, world_size: int) -> None:
    dealt = [
        flat(loader(data, None, 2, seed=0, epoch=0, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    assert {len(rank) for rank in dealt} == {-(-ITEMS // world_size)}
    assert set(chain.from_iterable(dealt)) == set(range(ITEMS))


def shifted(image: Tensor, row: int, column: int, mirror: bool) -> Tensor:
    """One image moved by hand: padded by 4 zeros, mirrored, cut."""
    height, width = image.shape[1:]
    padded = torch.zeros(1, height + 8, width + 8)
    padded[:, 4:-4, 4:-4] = image
    cut = padded[:, row : row + height, column : column + width]
    return cut.flip(2) if mirror else cut


def test_augmented_images_are_shifted_and_mirrored_ones(data: Dataset) -> None:
    plain = {int(y): x for xs, ys in loader(data, None, 1, 0, 0) for x, y in zip(xs, ys, strict=True)}
    seen = set()
    for epoch in range(6):
        for xs, ys in loader(data, None, 8, seed=0, epoch=epoch, augment=True):
            for x, y in zip(xs, ys.tolist(), strict=True):
                ways = [
                    (row, column, mirror)
                    for row in range(9)
                    for column in range(9)
                    for mirror in (False, True)
                    if torch.equal(x, shifted(plain[y], row, column, mirror))
                ]
                assert ways, y
                seen.add(ways[0])
    assert {row for row, _, _ in seen} == {column for _, column, _ in seen} == set(range(9))
    assert {mirror for _, _, mirror in seen} == {False, True}


@pytest.mark.parametrize("side", [1, 2, 3, 8, 200])
def test_a_square_around_any_pixel_is_cut_out(data: Dataset, side: int) -> None:
    plain = {int(y): x for xs, ys in loader(data, None, 1, 0, 0) for x, y in zip(xs, ys, strict=True)}
    _, height, width = data.shape
    seen = set()
    for epoch in range(40):
        for xs, ys in loader(data, None, 8, seed=0, epoch=epoch, cutout=side):
            for x, y in zip(xs, ys.tolist(), strict=True):
                changed = (x != plain[y]).any(0)
                assert (x[:, changed] == 0).all()
                rows, columns = changed.any(1).nonzero()[:, 0], changed.any(0).nonzero()[:, 0]
                if not len(rows):  # those pixels had the mean color
                    continue
                assert rows[-1] - rows[0] < side and columns[-1] - columns[0] < side
                seen.add((int(rows[0]), int(columns[0])))
    if side < 4:  # at every place of the image
        assert {row for row, _ in seen} >= set(range(height - side + 1))
        assert {column for _, column in seen} >= set(range(width - side + 1))


def test_images_take_the_network_s_shape(data: Dataset) -> None:
    x, _ = next(loader(data, (3, 16, 16), 4, seed=0, epoch=0, augment=True))
    assert x.shape == (4, 3, 16, 16)


def test_the_same_normalisation_as_a_batch(data: Dataset) -> None:
    x = torch.cat([x for x, _ in loader(data, None, 8, 0, 0, shuffle=False)])
    drawn, y = as_batch(data, ITEMS)
    torch.testing.assert_close(x[y], drawn)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"start": -1},
        {"seed": -1},
        {"epoch": -1},
        {"rank": 2, "world_size": 2},
        {"world_size": 0},
    ],
)
def test_impossible_numbers_are_rejected_at_once(data: Dataset, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="expected batch >= 1"):
        loader(data, None, **{"batch": 4, "seed": 0, "epoch": 0} | wrong)


def test_an_impossible_shape_is_rejected_at_once(data: Dataset) -> None:
    with pytest.raises(UsageError, match="expected a dataset of tokens"):
        loader(data, (16,), 4, 0, 0)


def test_only_images_are_augmented() -> None:
    for more in ({"augment": True}, {"cutout": 4}):
        with pytest.raises(UsageError, match="expected images to augment, got frames"):
            loader(synthetic((10, 4)), None, 4, 0, 0, **more)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected cutout >= 0, got -1"):
        loader(synthetic((10, 4)), None, 4, 0, 0, cutout=-1)


def test_it_is_empty_past_the_end(data: Dataset) -> None:
    assert list(islice(loader(data, None, 8, 0, 0, start=9), 5)) == []
