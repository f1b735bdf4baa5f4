"""Which layers are multiplied as float16 under scales, and how scales are found.

One half has the digits of TF32 at twice its rate; two have those of float32, and three products of them cost half of
what three of TF32 do. Scales come from the largest numbers of what is transformed, found on the device.
"""

import torch
from torch import Tensor

from lamina.accelerate.common.split_fp16.ops import pair_peaks
from lamina.accelerate.methods.circulant.ops import SHORT, tf32
from lamina.accelerate.methods.circulant.spectral.ops import TOP, Scales, run_dft
from lamina.accelerate.methods.circulant.tiles import scales_pay
from lamina.accelerate.methods.circulant.window import Window

GUESSED = 2**23
"""Numbers of rows from which their scale is guessed: reading these takes longer than the two launches that may mend it,
which are mostly idle."""

EVERY = 16
"""Of so many pieces of rows one is looked at to guess their scale."""


def halved(dtype: torch.dtype, x: Tensor, weight: Tensor, outputs: int, window: Window) -> bool:
    """Whether these are multiplied as float16 under scales: in float32's accuracy, where no sum is a short one."""
    if not x.dtype == weight.dtype == dtype == torch.float32:
        return False
    pays = scales_pay(x.numel(), weight.numel(), window.rows_out * outputs)
    blocks = min(weight.shape[0] // window.groups, weight.shape[-2])
    return pays and (tf32() or min(weight.shape[-1], 2 * window.taps * blocks, window.rows_out) > SHORT)


def halves() -> int:
    """Parts that each number is kept in."""
    return 1 if tf32() else 2


def room(summed: int, parts: int) -> float:
    """The power of two that sums of so many products are divided by: of one part, to stay below ``2**(TOP + 1)``.

    Those of two parts are kept in float32.
    """
    return 2.0 ** (TOP + 1 + (summed - 1).bit_length()) if parts == 1 else 1.0


def spectra(
    x: Tensor, w: Tensor | None, signs: Tensor | None, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor,
    block_size: int, groups: int,
) -> None:  # fmt: skip
    """Fill ``xs`` and, of weights if there are any, ``ws``, and what undoes their scales.

    To find the largest number of rows reads as much as their transform does. Of many rows some are looked at to guess
    the scale, and should one of the others be beyond it, all are transformed again.
    """
    both = (x,) if w is None else (x, w)
    misled = x.new_empty(1, dtype=torch.int32) if x.numel() >= GUESSED else None
    peaks = pair_peaks(*both, misled=misled, every=1 if misled is None else EVERY)
    scales = Scales(*peaks, x_down, w_down, misled)
    run_dft(x, both[-1], signs, xs, ws, block_size, groups, False, w is not None, scales)
    if misled is not None:
        scales = Scales(*pair_peaks(x, misled=misled), x_down, x_down, misled, again=True)
        run_dft(x, x, signs, xs, xs, block_size, groups, False, False, scales)
