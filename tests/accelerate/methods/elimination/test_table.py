"""Tables, runs and prefixes against their definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.methods.elimination import reference
from lamina.accelerate.methods.elimination.functional import lookup
from lamina.accelerate.methods.elimination.table import columns_of, longest_run, tap_prefixes


def choices(total: int) -> st.SearchStrategy[list[int]]:
    return st.sets(st.integers(0, total - 1), min_size=1).map(sorted)


@given(choices(40))
def test_swapping_moves_no_more_than_it_must(kept: list[int]) -> None:
    order = reference.swap_order(kept, 40)
    assert sorted(order) == kept
    moved = [place for place, source in enumerate(order) if place != source]
    assert moved == sorted(set(range(len(kept))) - set(kept))
    x = torch.arange(80.0).view(2, 40)
    at = lookup(torch.tensor(order), 40)
    assert at.moved.tolist() == moved and at.prefix == (not moved)
    assert torch.equal(reference.swapped(x, at.kept, at.moved, 1), x[:, order])


def test_a_swap_of_other_inputs_is_refused() -> None:
    for kept in ([0, 0], [9]):
        with pytest.raises(ValueError, match="distinct integers from 0 to 8"):
            reference.swap_order(kept, 9)


def test_columns_are_channels_and_taps() -> None:
    index = torch.tensor([2, 0])
    assert columns_of(index, 3, tap_major=False).tolist() == [6, 7, 8, 0, 1, 2]
    assert columns_of(index, 3, tap_major=True).tolist() == [6, 0, 7, 1, 8, 2]


@pytest.mark.parametrize(
    ("places", "stride", "run"),
    [
        ([0, 1, 2, 3], 1, 4),
        ([0, 1, 4, 5], 1, 2),
        ([1, 2, 5, 6], 1, 1),
        ([0, 1, 2], 1, 1),
        ([0, 9, 18, 27, 1, 10, 19, 28], 9, 4),
        ([1, 10, 4, 13], 9, 2),
        ([9, 18], 9, 1),
        (list(range(64)), 1, 16),
    ],
)
def test_runs_are_aligned_neighbours(places: list[int], stride: int, run: int) -> None:
    assert longest_run(places, stride=stride) == run


@given(st.integers(1, 8), st.integers(1, 4), st.data())
def test_every_tap_reads_a_prefix_of_as_many(channels: int, taps: int, data: st.DataObject) -> None:
    places = data.draw(choices(channels * taps))
    found = tap_prefixes(places, channels, taps)
    assert sorted(found.order) == list(range(channels))
    kept = np.zeros((channels, taps), dtype=bool)
    kept[[p // taps for p in places], [p % taps for p in places]] = True
    assert list(found.counts) == kept.sum(0).tolist()
    shares = kept.sum(1)[list(found.order)]
    assert (np.diff(shares) <= 0).all()
    chosen = found.index()
    assert len(set(chosen)) == len(places)
    position = {channel: place for place, channel in enumerate(found.order)}
    assert all(position[p // taps] < found.counts[p % taps] for p in chosen)
    nested = tap_prefixes(chosen, channels, taps)
    assert set(nested.index()) == set(chosen)
    wide = tap_prefixes(places, channels, taps, align=4)
    assert all(count % 4 == 0 or count == channels for count in wide.counts)
