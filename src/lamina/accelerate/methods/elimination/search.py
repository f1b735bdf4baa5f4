"""Selection of the synapse vectors to keep.

A synapse vector is the column of weights that multiplies one input. Of two correlated vectors (equation 6) one can
represent the other. Greedy retention keeps the vector that represents the most others (equation 7) and prunes those.
So no two kept vectors represent each other, and each pruned one has a representative.

Hill et al., "DeftNN: Addressing Bottlenecks for DNN Execution on GPUs via Synapse Vector Elimination and Near-compute
Data Fission", MICRO 2017, section 4.1.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina.accelerate.methods.elimination.config import By
from lamina.errors import UnsupportedError, UsageError

DECIMALS = 10
"""Decimals of rounded correlations, so that ties do not depend on a device's summation order."""

BISECTION_STEPS = 12
"""Steps of the search for a threshold."""


@dataclass(frozen=True)
class Retention:
    """The result of a search.

    ``order (K,)`` holds all vectors by priority. Its first ``representatives`` entries are those that greedy retention
    keeps at the threshold ``alpha``. The others follow, the least represented first; vectors of zeros come last.
    """

    order: Tensor
    representatives: int
    alpha: float

    def kept(self, number: int) -> Tensor:
        """The sorted indices of the first vectors of the order."""
        return self.order[:number].sort().values


def synapse_vectors(weight: Tensor, by: By = "channel", group: int = 1) -> Tensor:
    """The synapse vectors of a weight, one per row.

    Args:
        weight: ``(out, in, *kernel)`` of a linear layer, a convolution, or an LSTM, whose rows are gates.
        by: a vector for each input, or for each input and tap.
        group: neighbouring inputs in one vector.

    Returns:
        ``(in / group, length)``; by tap ``(in / group * taps, length)``, with the taps of an input consecutive.

    Raises:
        UnsupportedError: ``group`` does not divide the inputs.
    """
    if weight.dim() < 2:
        raise UsageError(f"weight: expected (out, in, *kernel), got {tuple(weight.shape)}")
    inputs = weight.shape[1]
    if inputs % group:
        raise UnsupportedError(f"group {group} does not divide its {inputs} inputs")
    columns = weight.detach().flatten(2) if weight.dim() > 2 else weight.detach()[..., None]
    grouped = columns.unflatten(1, (-1, group))  # (out, in / group, group, taps)
    rows = grouped.movedim(1, 0) if by == "channel" else grouped.permute(1, 3, 0, 2).flatten(0, 1)
    vectors: Tensor = rows.flatten(1)
    return vectors


def recurrent_vectors(weight: Tensor) -> Tensor:
    """One vector for each hidden unit of an LSTM, from ``weight_hh (4 * hidden, hidden)``: ``(hidden, 4 * hidden)``."""
    return synapse_vectors(weight)


def correlation(vectors: Tensor) -> Tensor:
    """Pearson's correlation of every two rows (equation 6), in float64: ``(K, K)``.

    A constant row is correlated with itself only, a row of zeros with nothing.

    Raises:
        UsageError: rows have fewer than two elements, or are not finite.
    """
    if vectors.dim() != 2 or not vectors.is_floating_point():
        raise UsageError(f"synapse vectors: expected floats of shape (K, length), got {vectors.dtype} {vectors.shape}")
    if vectors.shape[1] < 2:
        raise UsageError(
            f"synapse vectors: expected at least 2 weights in each, got {vectors.shape[1]}; "
            "a layer with one output has no correlations"
        )
    finite = vectors.isfinite().all(1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise UsageError(f"synapse vectors: expected finite weights, got NaN or infinity in vector {first}")
    wide = vectors.detach().double()
    flat = wide.amax(1) == wide.amin(1)
    centred = torch.where(flat[:, None], 0.0, wide - wide.mean(1, keepdim=True))
    amax = centred.abs().amax(1, keepdim=True)
    centred = centred / torch.where(amax > 0, amax, 1.0)  # squares of tiny weights would underflow
    length = centred.norm(dim=1, keepdim=True)
    centred = centred / torch.where(length > 0, length, 1.0)
    result = (centred @ centred.mT).round_(decimals=DECIMALS).clamp_(-1, 1)  # in place: gigabytes of 25,000 inputs
    result.fill_diagonal_(1.0)
    empty = (wide == 0).all(1)
    result[empty], result[:, empty] = 0.0, 0.0
    return result


def representative_counts(correlations: Tensor, alpha: float) -> Tensor:
    """The number of vectors, itself included, that each represents at threshold ``alpha`` (equation 7): ``(K,)``."""
    return (correlations >= alpha).sum(1)


def retain(correlations: Tensor, alpha: float, most: int | None = None) -> Tensor:
    """Greedy retention: keep the vector that represents the most remaining ones, and prune those.

    Of equal ones the first is kept. Returns the indices of kept vectors in the order of selection, and stops once there
    are more than ``most``.
    """
    return _index(_retained(_host(correlations) >= alpha, most), correlations)


def _retained(near: NDArray[np.bool_], most: int | None = None) -> list[int]:
    left = near.diagonal().copy()
    counts = np.count_nonzero(near[:, left], axis=1)
    chosen: list[int] = []
    while most is None or len(chosen) <= most:
        standing = np.where(left, counts, 0)
        first = int(standing.argmax()) if len(standing) else 0  # NumPy: the first of equal ones
        if not len(standing) or standing[first] <= 1:  # each remaining vector represents only itself
            chosen += np.flatnonzero(left).tolist()
            break
        chosen.append(first)
        gone = near[first] & left
        counts -= np.count_nonzero(near[gone], axis=0)
        left &= ~gone
    return chosen


def rank(correlations: Tensor, alpha: float) -> Retention:
    """All vectors by priority, for the threshold ``alpha``."""
    host = _host(correlations)
    order = _retained(host >= alpha)
    representatives = len(order)
    empty = host.diagonal() == 0
    waiting, kept = ~empty, np.zeros_like(empty)
    waiting[order], kept[order] = False, True
    closest = host.max(1, initial=-1.0, where=kept)
    for _ in range(int(waiting.sum())):
        index = int(np.where(waiting, closest, np.inf).argmin())
        order.append(index)
        waiting[index] = False
        closest = np.maximum(closest, host[index])
    return Retention(_index(order + np.flatnonzero(empty).tolist(), correlations), representatives, alpha)


def threshold_for(correlations: Tensor, number: int) -> float:
    """The largest threshold, by bisection of [0, 1], at which greedy retention keeps at most ``number`` vectors."""
    low, high, host = 0.0, 1.0, _host(correlations)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        if len(_retained(host >= middle, number)) <= number:
            low = middle
        else:
            high = middle
    return low


def select(
    vectors: Tensor,
    *,
    keep: float | None = None,
    alpha: float | None = None,
    align: int = 1,
    correlations: Tensor | None = None,
) -> tuple[Tensor, Retention]:
    """The sorted indices of the vectors to keep, and the result of the search.

    Args:
        vectors: ``(K, length)``.
        keep: keep ratio. Representatives come first, at a threshold that keeps no more than this.
        alpha: keep the representatives at this threshold, in place of ``keep``.
        align: the number of kept vectors is rounded up to a multiple of this, or to all.
        correlations: of the vectors, if they are known.

    Raises:
        UsageError: both or none of ``keep`` and ``alpha`` are given, or as for `correlation`.
    """
    if (keep is None) == (alpha is None):
        raise UsageError(f"expected either keep or alpha, got keep={keep} and alpha={alpha}")
    correlations = correlation(vectors) if correlations is None else correlations
    total = len(correlations)
    if keep is not None:
        number = aligned(keep * total, total, align)
        if number == total:
            everything = torch.arange(total, device=vectors.device)
            return everything, Retention(everything, total, 1.0)
        alpha = threshold_for(correlations, number)
        found = rank(correlations, alpha)
    else:
        found = rank(correlations, float(alpha or 0.0))
        number = aligned(found.representatives, total, align)
    return found.kept(number), found


def aligned(number: float, total: int, align: int) -> int:
    """At least one, rounded up to a multiple of ``align``, at most ``total``.

    >>> aligned(0.5 * 1613, 1613, 64)
    832
    """
    whole = math.ceil(number - 1e-9)
    return min(total, max(1, -(-whole // align)) * align)


def spread(index: Tensor, group: int, taps: int = 1) -> Tensor:
    """The index of single inputs, or inputs and taps, from that of groups of neighbours."""
    inputs, tap = index // taps, index % taps
    members = inputs[:, None] * group + torch.arange(group, device=index.device)
    return (members * taps + tap[:, None]).flatten().sort().values


def _host(correlations: Tensor) -> NDArray[np.float64]:
    """In host memory: greedy retention is a sequence of small steps, each of which would wait for a GPU."""
    array: NDArray[np.float64] = correlations.detach().cpu().numpy()
    return array


def _index(entries: list[int], like: Tensor) -> Tensor:
    return torch.tensor(entries, dtype=torch.long, device=like.device)
