"""The search, against equations 6 and 7 written out in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from lamina.accelerate.methods.elimination import search
from lamina.errors import UnsupportedError, UsageError

Array = NDArray[np.float64]


def oracle_correlation(vectors: Array) -> Array:
    """Number by number; what has no variance is correlated with itself alone, and zeros with nothing."""
    total = len(vectors)
    result = np.zeros((total, total))
    for i in range(total):
        for j in range(total):
            a, b = vectors[i] - vectors[i].mean(), vectors[j] - vectors[j].mean()
            flat = np.ptp(vectors[i]) == 0 or np.ptp(vectors[j]) == 0
            if i == j and vectors[i].any():
                result[i, j] = 1
            elif not flat:
                result[i, j] = (a @ b) / np.sqrt((a @ a) * (b @ b))
    return result


def oracle_retention(correlations: Array, alpha: float) -> list[int]:
    left = [i for i in range(len(correlations)) if correlations[i, i] > 0]
    kept = []
    while left:
        counts = [sum(correlations[i, j] >= alpha for j in left) for i in left]
        best = left[int(np.argmax(counts))]
        kept.append(best)
        left = [j for j in left if correlations[best, j] < alpha]
    return kept


def clusters(seed: int, total: int = 24, length: int = 9, kinds: int = 5) -> Tensor:
    """Vectors that are noisy multiples of a few."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(kinds, length, generator=draw, dtype=torch.float64)
    which = torch.randint(kinds, (total,), generator=draw)
    noise = torch.randn(total, length, generator=draw, dtype=torch.float64)
    return centres[which] * (0.5 + torch.rand(total, 1, generator=draw, dtype=torch.float64)) + 0.3 * noise


seeds = st.integers(0, 10_000)
alphas = st.floats(0.01, 1.0)


@given(seeds, alphas)
def test_search_is_the_equations(seed: int, alpha: float) -> None:
    vectors = clusters(seed)
    correlations = search.correlation(vectors)
    expected = oracle_correlation(vectors.numpy())
    np.testing.assert_allclose(correlations.numpy(), expected, atol=1e-9)
    counts = search.representative_counts(correlations, alpha)
    assert counts.tolist() == (correlations.numpy() >= alpha).sum(1).tolist()
    assert search.retain(correlations, alpha).tolist() == oracle_retention(correlations.numpy(), alpha)


@given(seeds, alphas)
def test_kept_vectors_represent_all_and_not_each_other(seed: int, alpha: float) -> None:
    correlations = search.correlation(clusters(seed))
    kept = search.retain(correlations, alpha)
    among = correlations[kept][:, kept].clone().fill_diagonal_(-1)
    assert (among < alpha).all()
    assert (correlations[:, kept].amax(1) >= alpha).all()


@given(seeds, alphas, alphas)
def test_a_lower_threshold_represents_no_fewer(seed: int, one: float, other: float) -> None:
    correlations = search.correlation(clusters(seed))
    low, high = sorted((one, other))
    at_low, at_high = (search.representative_counts(correlations, alpha) for alpha in (low, high))
    assert (at_low >= at_high).all() and (at_high >= 1).all()


@given(seeds, st.floats(0.3, 0.95))
def test_search_follows_a_permutation(seed: int, alpha: float) -> None:
    vectors = clusters(seed)
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed + 1))
    correlations, moved = search.correlation(vectors), search.correlation(vectors[order])
    assert torch.equal(moved, correlations[order][:, order])
    counts = search.representative_counts(correlations, alpha)
    assert torch.equal(search.representative_counts(moved, alpha), counts[order])
    first, best = search.retain(moved, alpha)[0], counts.max()
    assert counts[order[first]] == best  # which of equals comes first is all that may change
    if len(counts.unique()) == len(counts):
        assert set(order[search.retain(moved, alpha)].tolist()) == set(search.retain(correlations, alpha).tolist())


@given(seeds, st.floats(0.04, 1.0), st.floats(0.04, 1.0))
def test_an_order_names_each_vector_once_and_its_starts_are_nested(seed: int, one: float, other: float) -> None:
    found = search.rank(search.correlation(clusters(seed)), 0.8)
    assert found.order.sort().values.tolist() == list(range(24))
    few, many = sorted(search.aligned(24 * share, 24, 1) for share in (one, other))
    assert set(found.kept(few).tolist()) <= set(found.kept(many).tolist())


@given(seeds, st.floats(0.01, 1.0), st.sampled_from([1, 8, 16, 64]))
def test_selection_keeps_an_aligned_share(seed: int, keep: float, align: int) -> None:
    kept, found = search.select(clusters(seed, total=40), keep=keep, align=align)
    assert len(kept) in (-(-max(1, int(np.ceil(keep * 40 - 1e-9))) // align) * align, 40)
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert len(kept) >= keep * 40 - 1e-6
    if len(kept) < 40:
        assert found.representatives <= len(kept) or found.alpha == 0.0


def test_duplicates_and_zeros_go_first() -> None:
    base = torch.randn(6, 8, dtype=torch.float64)
    vectors = torch.cat([base, 2 * base, torch.zeros(2, 8, dtype=torch.float64)])
    kept, found = search.select(vectors, alpha=0.999)
    assert kept.tolist() == [0, 1, 2, 3, 4, 5] and found.representatives == 6
    assert found.order[-2:].tolist() == [12, 13]
    half, _ = search.select(vectors, keep=12 / 14)
    assert half.tolist() == list(range(12))


def test_flat_vectors_represent_themselves() -> None:
    vectors = torch.stack([torch.full((4,), 2.0), torch.full((4,), 2.0), torch.tensor([1.0, 2, 3, 4])])
    assert search.correlation(vectors).tolist() == torch.eye(3).tolist()


def test_tiny_weights_are_told_apart() -> None:
    vectors = clusters(3)
    torch.testing.assert_close(search.correlation(vectors * 1e-200), search.correlation(vectors))


def test_bad_vectors_are_refused() -> None:
    for bad in (float("nan"), float("inf")):
        vectors = torch.ones(3, 4)
        vectors[1, 2] = bad
        with pytest.raises(UsageError, match="expected finite weights, got NaN or infinity in vector 1"):
            search.correlation(vectors)
    with pytest.raises(UsageError, match="at least 2 weights in each, got 1"):
        search.correlation(torch.ones(3, 1))
    with pytest.raises(UsageError, match="expected floats"):
        search.correlation(torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(UsageError, match="either keep or alpha"):
        search.select(torch.randn(3, 4))
    with pytest.raises(UsageError, match="expected .out, in"):
        search.synapse_vectors(torch.ones(3))
    with pytest.raises(UnsupportedError, match="group 4 does not divide its 6 inputs"):
        search.synapse_vectors(torch.ones(2, 6), group=4)


@pytest.mark.parametrize("group", [1, 2])
def test_vectors_are_the_weights_of_one_input(group: int) -> None:
    weight = torch.randn(3, 4, 2, 5)
    channels, taps = search.synapse_vectors(weight, "channel", group), search.synapse_vectors(weight, "tap", group)
    assert channels.shape == (4 // group, 3 * group * 10) and taps.shape == (4 // group * 10, 3 * group)
    for place in range(4 // group):
        members = range(place * group, (place + 1) * group)
        assert sorted(channels[place].tolist()) == sorted(weight[:, list(members)].flatten().tolist())
        for tap in range(10):
            mine = weight[:, list(members), tap // 5, tap % 5]
            assert sorted(taps[place * 10 + tap].tolist()) == sorted(mine.flatten().tolist())
            assert search.spread(torch.tensor([place * 10 + tap]), group, 10).tolist() == [
                m * 10 + tap for m in members
            ]
    assert torch.equal(search.synapse_vectors(weight[:, :, 0, 0]), weight[:, :, 0, 0].mT)
    assert search.spread(torch.tensor([0, 2]), 2).tolist() == [0, 1, 4, 5]


def test_hidden_units_have_the_weights_of_all_gates() -> None:
    weight = torch.randn(12, 3)
    assert torch.equal(search.recurrent_vectors(weight), weight.mT)
