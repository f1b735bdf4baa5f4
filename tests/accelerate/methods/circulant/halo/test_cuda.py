"""The CUDA sources, on the GPU or as C++ on the CPU with one warp per block, against a convolution in float64."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import compiling
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.tiling import SHARED_MEMORY
from lamina.accelerate.methods.circulant import ops
from lamina.accelerate.methods.circulant.halo import cuda as halo
from lamina.accelerate.methods.circulant.halo.cuda import HaloConv, Tile
from lamina.accelerate.runtime import nvrtc as cuda
from lamina.accelerate.runtime.nvrtc import Kernel
from lamina.testing.cuda_on_cpu import KernelOnCpu

from ..test_ops import reference_spectral_matmul

CASES = {  # geometry, p, q, dtype, terms
    "square": (Conv2dProblem(2, 5, 6, 3, 3, 1, 1, 1, 1), 4, 4, torch.float16, 1),
    "two terms": (Conv2dProblem(2, 5, 6, 3, 3, 1, 1, 1, 1), 4, 6, torch.float16, 2),
    "bfloat16, dilated, odd blocks": (Conv2dProblem(1, 6, 5, 3, 2, 1, 1, 0, 1, 2, 1), 3, 5, torch.bfloat16, 1),
    "strided, one tile": (Conv2dProblem(2, 7, 6, 3, 3, 2, 2, 1, 1), 2, 1, torch.float16, 2),
    "along a line, padded far": (Conv2dProblem(3, 1, 9, 1, 5, 1, 1, 0, 6), 9, 2, torch.float16, 1),
}
LARGE = {
    "wide": (Conv2dProblem(16, 33, 130, 3, 3, 1, 1, 1, 1), 3, 4, torch.float16, 1),
    "many blocks": (Conv2dProblem(64, 14, 14, 3, 3, 1, 1, 1, 1), 14, 7, torch.bfloat16, 1),
    "large window in two terms": (Conv2dProblem(32, 27, 29, 5, 5, 1, 1, 2, 2), 8, 2, torch.float16, 2),
    "pixels of one tile": (Conv2dProblem(16, 57, 59, 3, 3, 1, 1, 1, 1), 2, 1, torch.float16, 2),
    "pixels of two blocks": (Conv2dProblem(16, 112, 113, 3, 3, 1, 1, 1, 1), 2, 2, torch.bfloat16, 1),
    "strided in two terms": (Conv2dProblem(64, 30, 31, 3, 3, 2, 2, 1, 1), 6, 5, torch.float16, 2),
}


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, poisoned_empty: None) -> Iterator[None]:
    """Tiles of at most three rows, for one warp."""
    fit = HaloConv.fit

    def small(conv: HaloConv, *args: Any) -> Tile | None:
        tile = fit(conv, *args)
        return tile and replace(tile, height=min(tile.height, 3), num_warps=1, warps_m=1)

    monkeypatch.setattr(HaloConv, "fit", small)
    monkeypatch.setattr(halo, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(halo, "MIN_NUMEL", 0)
    halo._launch_for.cache_clear()
    with torch.device("cpu"):
        yield
    halo._launch_for.cache_clear()


def spectrum(dtype: torch.dtype, terms: int, *shape: int) -> Tensor:
    values = torch.randn(shape)
    hi = values.to(dtype)
    return hi if terms == 1 else torch.stack([hi, (values - hi).to(dtype)])


def exact(spectrum: Tensor) -> Tensor:
    return (spectrum.double().sum(0) if spectrum.dim() == 5 else spectrum.double()).requires_grad_()


def check(window: Conv2dProblem, p: int, q: int, dtype: torch.dtype, terms: int, slots: int) -> None:
    """The matmul and both gradients, to the rounding of the stored dtype or of float32 sums."""
    xs = spectrum(dtype, terms, slots, window.rows_in, 2, q)
    ws = spectrum(dtype, terms, slots, p * window.taps, 2, q)
    dys = spectrum(dtype, terms, slots, window.rows_out, 2, p)
    stored = torch.float32 if terms == 2 else dtype
    x, w = exact(xs), exact(ws)
    y = reference_spectral_matmul(x, w, window)
    dx, dw = torch.autograd.grad(y, [x, w], exact(dys))

    ours = torch.full(y.shape, torch.nan, dtype=stored)
    assert halo.spectral_matmul(xs, ws, ours, window, backward_data=False, output_scale=0.5)
    close(ours, y / 2, stored)
    ours = torch.full(dx.shape, torch.nan, dtype=stored)
    unit_stride = window.stride_height == window.stride_width == 1
    assert halo.spectral_matmul(dys, ws, ours, window, backward_data=True, output_scale=1.0) == unit_stride
    if unit_stride:
        close(ours, dx, stored)
    partials = halo.weight_gradient(dys, xs, window)
    assert partials is not None
    close(partials.sum(0), dw, torch.float32)


def close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    amax = theirs.abs().max().item()
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(ours.double(), theirs.detach(), rtol=0, atol=tolerance * amax)


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("pack_size", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_matmuls_equal_a_real_convolution(name: str, pack_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halo, "pack_size_for", lambda *_: pack_size)
    monkeypatch.setattr(halo, "MAX_WEIGHT_MMAS", 100)  # also where they would not pay
    monkeypatch.setattr(halo, "MAX_WARP_MMAS", {1: 100, 2: 100})
    check(*CASES[name], slots=2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_large_matmuls_equal_a_real_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halo, "MIN_NUMEL", 0)
    with torch.device("cuda"):
        check(*LARGE[name], slots=4)


@pytest.mark.usefixtures("on_the_cpu")
def test_a_nonfinite_input_affects_only_the_outputs_that_read_it() -> None:
    window = Conv2dProblem(1, 4, 5, 3, 3, 1, 1, 1, 1)
    xs, ws = spectrum(torch.float16, 1, 2, 20, 2, 4), spectrum(torch.float16, 1, 2, 36, 2, 4)
    xs[1, 6] = torch.nan  # row 1, column 1
    y = torch.empty(2, 20, 2, 4, dtype=torch.float16)
    assert halo.spectral_matmul(xs, ws, y, window, backward_data=False, output_scale=1.0)
    nonfinite = y.isnan().any(-1).any(-1).view(2, 4, 5)
    assert not nonfinite[0].any()
    assert nonfinite[1, :3, :3].all() and nonfinite[1].sum() == 9


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(("q", "reached"), [(1, slice(0, 8)), (2, slice(2, 6))])  # packs of four and of two
def test_a_nonfinite_input_affects_the_packs_whose_windows_contain_it(q: int, reached: slice) -> None:
    window = Conv2dProblem(1, 4, 11, 3, 3, 1, 1, 1, 1)
    xs, ws = spectrum(torch.float16, 1, 2, 44, 2, q), spectrum(torch.float16, 1, 2, 18, 2, q)
    xs[1, 14] = torch.nan  # row 1, column 3
    y = torch.empty(2, 44, 2, 2, dtype=torch.float16)
    assert halo.spectral_matmul(xs, ws, y, window, backward_data=False, output_scale=1.0)
    nonfinite = y.isnan().any(-1).any(-1).view(2, 4, 11)
    assert not nonfinite[0].any()
    assert nonfinite[1, :3, reached].all() and nonfinite.sum() == nonfinite[1, :3, reached].numel()


@pytest.mark.usefixtures("on_the_cpu")
def test_operators_use_these_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Conv2dProblem(1, 4, 5, 3, 3, 1, 1, 1, 1)
    xs, ws = spectrum(torch.float16, 1, 2, 20, 2, 2), spectrum(torch.float16, 1, 2, 18, 2, 2)
    dys = spectrum(torch.float16, 1, 2, 20, 2, 2)
    cuda_results = [
        ops.spectral_matmul(xs, ws, window.pack()),
        *ops.spectral_matmul_backward(dys, xs, ws, window.pack()),
    ]
    monkeypatch.setattr(halo, "MIN_NUMEL", 2**40)
    triton_results = [
        ops.spectral_matmul(xs, ws, window.pack()),
        *ops.spectral_matmul_backward(dys, xs, ws, window.pack()),
    ]
    for a, b in zip(cuda_results, triton_results, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=2e-3, atol=4e-3)


def test_unsupported_problems_are_left_to_the_triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    ws = torch.zeros(2, 18, 2, 2, dtype=torch.float16)

    def supported(window: Conv2dProblem, dtype: torch.dtype = torch.float16, blocks: int = 2) -> bool:
        xs = torch.zeros(2, window.rows_in, 2, blocks, dtype=dtype)
        return halo.weight_gradient(xs, xs, window) is not None

    square = Conv2dProblem(1, 4, 5, 3, 3, 1, 1, 1, 1)
    assert not halo.spectral_matmul(
        torch.zeros(2, 20, 2, 2).half(), ws, ws, square, backward_data=False, output_scale=1.0
    )  # on the CPU
    monkeypatch.setattr(halo, "kernel_class", Unlaunched)
    assert not supported(square)  # too few elements
    monkeypatch.setattr(halo, "MIN_NUMEL", 0)
    with pytest.raises(NotImplementedError):
        supported(square)
    assert not supported(square, torch.float32)
    assert not supported(replace(square, groups=2))
    assert not supported(Conv2dProblem(1, 4, 5))
    assert not supported(square, blocks=17)


@compiling.needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_sources_compile_for_gpus_with_asynchronous_copies(architecture: str, own_binaries: None) -> None:
    for window, p, q, dtype, terms in CASES.values():
        for name in ("spectral_matmul", "weight_gradient"):
            launch = halo._launch_for(Kernel, name, SHARED_MEMORY, dtype, 32, window, q, p, terms, False)
            assert launch is not None and isinstance(launch.kernel, Kernel)
            assert cuda.compiled(launch.kernel.source, architecture, launch.kernel.options)


class Unlaunched(Kernel):
    """A kernel that must not be launched."""

    def launch(self, *_: object, **__: object) -> None:
        raise NotImplementedError


SIZES = st.integers(1, 300)
FEW = st.integers(1, 5)


@given(SIZES, SIZES, FEW, FEW, st.integers(1, 2), st.integers(1, 3), st.integers(1, 16), st.integers(1, 16), FEW)
def test_tiles_fit_shared_memory_and_cover_the_image(
    height: int,
    width: int,
    down: int,
    across: int,
    stride: int,
    dilation: int,
    in_blocks: int,
    out_blocks: int,
    terms: int,
) -> None:
    reach = max((down - 1) * dilation, (across - 1) * dilation)
    sizes = 3, height + reach, width + reach, down, across, stride, stride
    window = Conv2dProblem(*sizes, dilation_height=dilation, dilation_width=dilation)
    conv = HaloConv(window, in_blocks, out_blocks, 1 + terms % 2, halo.pack_size_for(window, in_blocks, out_blocks))
    for (name, _), tiles in halo.TILES.items():
        size = conv.matmul_bytes if name == "spectral_matmul" else conv.gradient_bytes
        for config in tiles:
            tile = conv.fit(config, size)
            if tile is None:  # a line does not fit
                assert size(replace(config, width=min(conv.line_packs, 32))) > SHARED_MEMORY - 1024
                continue
            assert size(tile) * tile.blocks_per_sm <= SHARED_MEMORY
            assert 1 <= tile.height <= window.out_height and 1 <= tile.width <= conv.line_packs
            assert tile.height * tile.width <= max(config.max_packs, tile.width)


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize(("size", "in_blocks", "out_blocks"), [(112, 1, 2), (56, 4, 4), (28, 8, 8), (14, 8, 8)])
def test_tiles_hold_whole_lines_for_the_convolutions_of_a_large_network(
    size: int, in_blocks: int, out_blocks: int, terms: int
) -> None:
    window = Conv2dProblem(64, size, size, 3, 3, 1, 1, 1, 1)
    conv = HaloConv(window, in_blocks, out_blocks, terms, halo.pack_size_for(window, in_blocks, out_blocks))
    for name, size_of in (("spectral_matmul", conv.matmul_bytes), ("weight_gradient", conv.gradient_bytes)):
        config = halo.TILES[name, terms][-1]
        tile = conv.fit(config, size_of)
        assert tile is not None and tile.blocks_per_sm == config.blocks_per_sm and tile.width == conv.line_packs
