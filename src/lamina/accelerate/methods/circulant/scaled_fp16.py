"""Scaled fp16: float32 spectra as float16 under per-tensor power-of-two scales, and when layers use it.

One fp16 term has the precision of TF32 at twice its throughput. Two terms have that of float32, and their three
products cost half of 3xTF32. The scales follow from the amax of the transformed tensors, which is computed on the
device.
"""

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.split_fp16.ops import pair_amax
from lamina.accelerate.methods.circulant.ops import SHORT_SUM, tf32
from lamina.accelerate.methods.circulant.spectral.ops import TARGET_EXPONENT, Scales, run_dft
from lamina.accelerate.methods.circulant.tiles import scaled_fp16_pays

MIN_SAMPLED_NUMEL = 2**23
"""Elements of an input from which its amax is sampled. A full amax then takes longer than the two launches of a retry,
which mostly have nothing to do."""

SAMPLE_STRIDE = 16
"""One block of this many is read to sample an amax."""


def applies(dtype: torch.dtype, x: Tensor, weight: Tensor, outputs: int, window: Conv2dProblem) -> bool:
    """Whether a layer uses scaled fp16: in float32, if it pays, and with full float32 accuracy no sum is short."""
    if not x.dtype == weight.dtype == dtype == torch.float32:
        return False
    sums = weight.shape[-1], 2 * window.taps * min(weight.shape[0] // window.groups, weight.shape[-2])
    if isinstance(x.numel(), torch.SymInt):  # a dynamic batch is taken for a large one: a test would restrict it
        return tf32() or min(sums) > SHORT_SUM
    pays = scaled_fp16_pays(x.numel(), weight.numel(), window.rows_out * outputs)
    return pays and (tf32() or min(*sums, window.rows_out) > SHORT_SUM)


def num_terms() -> int:
    """The fp16 terms of an element: one where TF32 is allowed, else two."""
    return 1 if tf32() else 2


def output_headroom(summed: int, terms: int) -> float:
    """The power of two by which sums of ``summed`` products are divided to fit their output type.

    Sums of one-term products are stored as float16 and stay below ``2**(TARGET_EXPONENT + 1)``. Sums of two-term
    products are stored as float32.
    """
    return 2.0 ** (TARGET_EXPONENT + 1 + (summed - 1).bit_length()) if terms == 1 else 1.0


def spectra(
    x: Tensor, w: Tensor | None, signs: Tensor | None, xs: Tensor, ws: Tensor, x_scale_inv: Tensor, w_scale_inv: Tensor,
    block_size: int, groups: int,
) -> None:  # fmt: skip
    """Write the scaled spectra of ``x`` and, if given, of ``w`` to ``xs`` and ``ws``, and their inverse scales.

    A full amax reads as many bytes as the transform. For large ``x`` the amax is sampled; if an element exceeds the
    headroom of the sampled scale, the transform sets an overflow flag and a retry transforms ``x`` with its full amax.
    """
    tensors = (x,) if w is None else (x, w)
    overflow = x.new_empty(1, dtype=torch.int32) if x.numel() >= MIN_SAMPLED_NUMEL else None
    partial_amax = pair_amax(*tensors, overflow=overflow, sample_stride=1 if overflow is None else SAMPLE_STRIDE)
    scales = Scales(*partial_amax, x_scale_inv, w_scale_inv, overflow)
    run_dft(x, tensors[-1], signs, xs, ws, block_size, groups, False, w is not None, scales)
    if overflow is not None:
        scales = Scales(*pair_amax(x, overflow=overflow), x_scale_inv, x_scale_inv, overflow, retry=True)
        run_dft(x, x, signs, xs, xs, block_size, groups, False, False, scales)
