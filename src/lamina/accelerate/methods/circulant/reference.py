"""The definition of block-circulant layers, by their dense matrix and in the frequency domain.

``weight`` is ``(p, *kernel, q, k)``: ``p`` by ``q`` blocks of size ``k``, one for each filter tap. Block
``(i, j)`` has the first column ``weight[i, ..., j, :]``, so its element ``(r, c)`` is
``weight[i, ..., j, (r - c) mod k]``. Widths that ``k`` does not divide use part of the last block.

Ding et al., "CirCNN", MICRO 2017, equations 1 to 3.

Axes are split by ``torch.unflatten``: the method of that name cannot be traced where a default device is set.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant.basis import basis, slot_count


def dense_matrix(
    weight: Tensor, out_features: int, in_features: int, groups: int = 1, signs: Tensor | None = None
) -> Tensor:
    """The weight of the equivalent dense layer: ``(out_features, in_features / groups, *kernel)``.

    ``signs (k)`` multiply the elements of each block of the input.
    """
    k = weight.shape[-1]
    time = torch.arange(k, device=weight.device)
    blocks = weight[..., (time[:, None] - time) % k]  # (p, *kernel, q, k, k)
    blocks = blocks if signs is None else blocks * signs.to(blocks.dtype)
    blocks = blocks.movedim(-2, 1).flatten(0, 1).flatten(-2)  # (p k, *kernel, q k)
    per_group = out_features // groups
    rows: Tensor = torch.unflatten(blocks, 0, (groups, -1))[:, :per_group].flatten(0, 1)
    return rows[..., : in_features // groups].movedim(-1, 1)


def flip_signs(x: Tensor, signs: Tensor | None, axis: int = 1, groups: int = 1) -> Tensor:
    """``x`` times ``signs (k)``, repeated along ``axis`` within each group."""
    if signs is None:
        return x
    per_group = x.shape[axis] // groups
    factors = signs.to(x.dtype).repeat(-(-per_group // len(signs)))[:per_group].repeat(groups)
    return x * factors.view(-1, *(1,) * (x.dim() - 1 - axis))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """``x: (..., in_features)`` to ``(..., out_features)``: DFT, matmul per frequency, inverse DFT."""
    p, q, k = weight.shape
    d = basis(k, dtype=x.dtype, device=x.device).view(2, -1, k)
    rows = F.pad(x.reshape(-1, x.shape[-1]), (0, q * k - x.shape[-1])).view(-1, q, k)
    spectra = torch.einsum("nqt,cft->fncq", rows, d).flatten(2)  # (slots, n, 2 q)
    eigenvalues = torch.einsum("pqt,cft->fcpq", weight, _eigenbasis(weight))
    products = torch.unflatten(spectra @ embedding(eigenvalues).mT, 2, (2, p))
    y = torch.einsum("fncp,cft->npt", products, d).flatten(1)
    y = y[:, :out_features].reshape(*x.shape[:-1], out_features)
    return y if bias is None else y + bias


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, out_channels: int, window: Conv2dProblem) -> Tensor:
    """``x: (N, C, H, W)`` to ``(N, out_channels, H', W')``; ``weight: (p, KH, KW, q, k)``.

    The DFT acts on the channels of each pixel, so it commutes with the sliding window and is computed first.
    """
    k, q, g = weight.shape[-1], weight.shape[-2], window.groups
    slots = slot_count(k)
    d = basis(k, dtype=x.dtype, device=x.device).view(2, slots, k)
    blocks = torch.unflatten(x, 1, (g, -1))
    blocks = torch.unflatten(F.pad(blocks, (0, 0, 0, 0, 0, q * k - blocks.shape[2])), 2, (q, k))
    spectra = torch.einsum("ngqthw,cft->ngfcqhw", blocks, d)
    per_group = torch.unflatten(weight, 0, (g, -1))
    eigenvalues = torch.einsum("gpabqt,cft->gabfcpq", per_group, _eigenbasis(weight))
    convolved = F.conv2d(
        spectra.flatten(1, 4),
        embedding(eigenvalues).permute(0, 3, 4, 5, 1, 2).flatten(0, 2),
        None,
        (window.stride_height, window.stride_width),
        (window.padding_height, window.padding_width),
        (window.dilation_height, window.dilation_width),
        groups=g * slots,
    )
    products = torch.unflatten(convolved, 1, (g, slots, 2, -1))
    y = torch.einsum("ngfcphw,cft->ngpthw", products, d).flatten(2, 3)
    y = y[:, :, : out_channels // g].flatten(1, 2)
    return y if bias is None else y + bias[:, None, None]


def embedding(eigenvalues: Tensor) -> Tensor:
    """Packed complex matrices ``(..., slots, 2, p, q)`` as equivalent real matrices ``(..., slots, 2p, 2q)``.

    A complex matrix is ``[[real, -imaginary], [imaginary, real]]``; slot 0 holds two real ones, ``diag(a, b)``.
    """
    real, imaginary = eigenvalues.unbind(-3)
    slots = torch.arange(real.shape[-3], device=real.device)[:, None, None]
    is_complex, zeros = slots > 0, torch.zeros_like(real)
    above = torch.cat([real, torch.where(is_complex, -imaginary, zeros)], -1)
    below = torch.cat([torch.where(is_complex, imaginary, zeros), torch.where(is_complex, real, imaginary)], -1)
    return torch.cat([above, below], -2)


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The next ``(h, c)`` from the gates ``(N, 4, hidden_size)``: input, forget, cell and output."""
    i, f, g, o = gates.unbind(-2)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _eigenbasis(weight: Tensor) -> Tensor:
    k = weight.shape[-1]
    return basis(k, eigenvalues=True, dtype=weight.dtype, device=weight.device).view(2, -1, k)
