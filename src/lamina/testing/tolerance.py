"""The tolerance rule: a result may be no more than twice as wrong as plain torch in the same precision."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_as_accurate(
    ours: Tensor, plain: Tensor, exact: Tensor, *, worst: float = 2.0, mean: float = 2.0, what: str = "result"
) -> None:
    """Hold a result to the accuracy of plain torch, by its worst element and on average.

    ``error(ours) <= factor * error(plain) + one rounding``, errors against ``exact``. That suits a kernel which
    sums the same products in another order; one that sums other products states its own factors, with the reason.

    Args:
        ours: the result under test, of the same shape and type as ``plain``.
        plain: the same computation by plain torch operators in the same type.
        exact: the same computation in float64.
        worst: factor for the element that is furthest off.
        mean: factor for the mean error.
        what: the result's name in messages.

    Raises:
        AssertionError: with the coordinates of the worst element and both errors. NaN is never accurate.
    """
    assert ours.shape == exact.shape, f"{what}: expected shape {tuple(exact.shape)}, got {tuple(ours.shape)}"
    assert ours.dtype == plain.dtype, f"{what}: expected {plain.dtype}, got {ours.dtype}"
    assert exact.dtype == torch.float64, f"{what}: expected a float64 reference, got {exact.dtype}"
    rounding = torch.finfo(ours.dtype).eps * exact.abs()
    error, allowed = (ours.double() - exact).abs(), (plain.double() - exact).abs()
    if not error.numel():
        return
    bad = torch.nan_to_num(error, nan=float("inf"))
    place = tuple(int(i) for i in torch.unravel_index(bad.argmax(), bad.shape))
    limit = worst * allowed.max() + rounding.max()
    assert bad.max() <= limit, (
        f"{what}{list(place)}: expected {exact[place].item():g}, got {ours[place].item():g}; "
        f"off by {bad.max():.3g}, plain torch by at most {allowed.max():.3g}"
    )
    average = mean * allowed.mean() + rounding.mean()
    assert bad.mean() <= average, f"{what}: off by {bad.mean():.3g} on average, plain torch by {allowed.mean():.3g}"
