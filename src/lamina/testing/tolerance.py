"""The tolerance rule: the error of a result is at most twice that of plain PyTorch, plus one rounding."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_ROW = 16
"""Elements that a row needs for a bound of its own; the norm of a shorter one may all but cancel."""


def assert_as_accurate(
    ours: Tensor,
    plain: Tensor,
    exact: Tensor,
    *,
    worst: float = 2.0,
    mean: float = 2.0,
    slices: bool = True,
    what: str = "result",
) -> None:
    """Bound the error of a result by that of plain PyTorch: its worst element, its average, each row and each column.

    ``error(ours) <= factor * error(plain) + one rounding``, with errors against ``exact``. The factor 2 suits a kernel
    that sums the same products in another order; one that sums other products states its own factors, with the reason.
    Rows are slices along the first axis, columns along the second (the channels of images). Their errors are relative
    to their own norms, so that small rows count as much as large ones.

    Args:
        ours: the result under test, with the shape and dtype of ``plain``.
        plain: the same computation by plain PyTorch operators in the same dtype.
        exact: the same computation in float64.
        worst: factor for the worst element, and for the worst row and column.
        mean: factor for the mean error.
        slices: whether to bound each row and column; not where an activation leaves slices with hardly a value.
        what: the result's name in messages.

    Raises:
        AssertionError: with the index of the worst element or row and both errors. NaN is never accurate.
    """
    assert ours.shape == exact.shape, f"{what}: expected shape {tuple(exact.shape)}, got {tuple(ours.shape)}"
    assert ours.dtype == plain.dtype, f"{what}: expected {plain.dtype}, got {ours.dtype}"
    assert exact.dtype == torch.float64, f"{what}: expected a float64 reference, got {exact.dtype}"
    eps = torch.finfo(ours.dtype).eps
    rounding = eps * exact.abs()
    error, allowed = (ours.double() - exact).abs(), (plain.double() - exact).abs()
    if not error.numel():
        return
    bad = torch.nan_to_num(error, nan=float("inf"))
    index = tuple(int(i) for i in torch.unravel_index(bad.argmax(), bad.shape))
    limit = worst * allowed.max() + rounding.max()
    assert bad.max() <= limit, (
        f"{what}{list(index)}: expected {exact[index].item():g}, got {ours[index].item():g}; "
        f"error {bad.max():.3g}, of plain torch at most {allowed.max():.3g}"
    )
    average = mean * allowed.mean() + rounding.mean()
    assert bad.mean() <= average, f"{what}: mean error {bad.mean():.3g}, of plain torch {allowed.mean():.3g}"
    for axis, name in ((0, "row"), (1, "column")) if slices else ():
        if exact.dim() > axis and exact.shape[axis] * MIN_ROW <= exact.numel():
            _bound_slices(bad, allowed, exact, axis, worst, eps, f"{what}: {name}")


def _bound_slices(
    bad: Tensor, allowed: Tensor, exact: Tensor, axis: int, worst: float, eps: float, what: str
) -> None:
    """Bound the relative L2 error of each slice along an axis by the worst of plain PyTorch's."""
    ours, theirs, size = (x.movedim(axis, 0).flatten(1).norm(dim=1) for x in (bad, allowed, exact))
    inside = size > 0
    if not inside.any():
        return
    ratios = torch.where(inside, ours / size.where(inside, size.new_ones(())), 0)
    limit = worst * (theirs[inside] / size[inside]).max() + eps
    index = int(ratios.argmax())
    assert ratios[index] <= limit, f"{what} {index}: relative error {ratios[index]:.3g}, expected at most {limit:.3g}"
