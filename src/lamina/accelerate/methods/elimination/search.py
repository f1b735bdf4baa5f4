"""Which synapse vectors a layer can do without.

A synapse vector holds the weights by which one input reaches every output. Where two of them are correlated (equation
6), one can represent the other. Counts of whom each represents (equation 7) and greedy retention of the one that
represents the most leave vectors no two of which represent each other, and one for each that goes.

Hill et al., "DeftNN: Addressing Bottlenecks for DNN Execution on GPUs via Synapse Vector Elimination and Near-compute
Data Fission", MICRO 2017, section 4.1.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.accelerate.methods.elimination.config import By
from lamina.errors import UnsupportedError, UsageError

DECIMALS = 10
"""To which correlations are rounded, so that ties do not hang on the order in which a device sums."""

HALVINGS = 12
"""Of the interval in which a threshold is sought."""


@dataclass(frozen=True)
class Retention:
    """The outcome of a search.

    ``order`` ``(K,)`` names every vector, the first to keep first; its first ``representatives`` are those that greedy
    retention keeps at ``alpha``. The others follow, the least represented first, and vectors of zeros come last.
    """

    order: Tensor
    representatives: int
    alpha: float

    def kept(self, number: int) -> Tensor:
        """The first vectors of the order, by their places."""
        return self.order[:number].sort().values


def synapse_vectors(weight: Tensor, by: By = "channel", group: int = 1) -> Tensor:
    """The synapse vectors of a weight, a row each.

    Args:
        weight: ``(out, in, *window)`` of a linear layer, a convolution, or one side of an LSTM, whose rows are gates.
        by: a vector for each input, or for each input and tap.
        group: neighbouring inputs that make one vector together.

    Returns:
        ``(in / group, length)``; by tap ``(in / group * taps, length)``, the taps of an input in turn.

    Raises:
        UnsupportedError: ``group`` does not divide the inputs.
    """
    if weight.dim() < 2:
        raise UsageError(f"weight: expected (out, in, *window), got {tuple(weight.shape)}")
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

    A row of one number throughout is correlated with nothing but itself, a row of zeros not even with that.

    Raises:
        UsageError: rows are shorter than two numbers, or not finite.
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
    peak = centred.abs().amax(1, keepdim=True)
    centred = centred / torch.where(peak > 0, peak, 1.0)  # squares of tiny weights would vanish
    length = centred.norm(dim=1, keepdim=True)
    centred = centred / torch.where(length > 0, length, 1.0)
    result = (centred @ centred.mT).round(decimals=DECIMALS).clamp(-1, 1)
    result.fill_diagonal_(1.0)
    empty = (wide == 0).all(1)
    result[empty], result[:, empty] = 0.0, 0.0
    return result


def representative_counts(correlations: Tensor, alpha: float) -> Tensor:
    """How many vectors each one could represent at the threshold ``alpha``, itself too (equation 7): ``(K,)``."""
    return (correlations >= alpha).sum(1)


def retain(correlations: Tensor, alpha: float, most: int | None = None) -> Tensor:
    """Greedy retention: keep the vector that represents the most of those left, and drop these.

    Of equals the first is kept. Returns the places of the kept ones, in the order in which they were chosen; the search
    ends early once there are more than ``most``.
    """
    near = correlations >= alpha
    left = near.diagonal().clone()
    counts = near[:, left].sum(1)
    chosen: list[int] = []
    while most is None or len(chosen) <= most:
        standing = torch.where(left, counts, 0)
        largest = int(standing.max()) if len(standing) else 0
        if largest <= 1:  # those left represent themselves alone
            chosen += left.nonzero().flatten().tolist()
            break
        chosen.append(_first(standing == largest))
        gone = near[chosen[-1]] & left
        counts = counts - near[gone].sum(0)
        left &= ~gone
    return torch.tensor(chosen, dtype=torch.long, device=correlations.device)


def rank(correlations: Tensor, alpha: float) -> Retention:
    """Every vector in the order in which to keep it, by the threshold ``alpha``."""
    chosen = retain(correlations, alpha)
    waiting = torch.ones(len(correlations), dtype=torch.bool, device=correlations.device)
    waiting[chosen] = False
    empty = correlations.diagonal() == 0
    waiting &= ~empty
    order = chosen.tolist()
    closest = correlations[:, chosen].amax(1) if len(chosen) else correlations.new_zeros(len(correlations))
    for _ in range(int(waiting.sum())):
        far = torch.where(waiting, closest, torch.inf)
        place = _first(far == far.min())
        order.append(place)
        waiting[place] = False
        closest = torch.maximum(closest, correlations[place])
    order += empty.nonzero().flatten().tolist()
    return Retention(torch.tensor(order, dtype=torch.long, device=correlations.device), len(chosen), alpha)


def threshold_for(correlations: Tensor, number: int) -> float:
    """The largest threshold found, by halving from 0 to 1, at which greedy retention keeps no more than ``number``."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if len(retain(correlations, middle, number)) <= number:
            low = middle
        else:
            high = middle
    return low


def select(
    vectors: Tensor, *, keep: float | None = None, alpha: float | None = None, align: int = 1
) -> tuple[Tensor, Retention]:
    """The places of the vectors to keep, in rising order, and how they were found.

    Args:
        vectors: ``(K, length)``.
        keep: share to keep. Representatives come first, at a threshold that leaves no more than that.
        alpha: threshold to keep the representatives of, instead.
        align: the number kept is rounded up to a multiple of this, or to all.

    Raises:
        UsageError: both or none of ``keep`` and ``alpha``, or what `correlation` refuses.
    """
    if (keep is None) == (alpha is None):
        raise UsageError(f"expected either keep or alpha, got keep={keep} and alpha={alpha}")
    correlations = correlation(vectors)
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


def spread(places: Tensor, group: int, taps: int = 1) -> Tensor:
    """Places of single inputs (or inputs and taps) from those of groups of neighbours."""
    inputs, tap = places // taps, places % taps
    members = inputs[:, None] * group + torch.arange(group, device=places.device)
    return (members * taps + tap[:, None]).flatten().sort().values


def _first(mask: Tensor) -> int:
    """The first true place: the same on every device, which ``argmax`` of equals is not."""
    falling = torch.arange(len(mask), 0, -1, device=mask.device)
    return int((mask * falling).argmax())
