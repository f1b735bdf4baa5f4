"""The CUDA sources, on the GPU or as C++ on the CPU with blocks of one warp, against one convolution in float64."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lamina.accelerate.methods.circulant import ops
from lamina.accelerate.methods.circulant.halo import cuda as halo
from lamina.accelerate.methods.circulant.halo.cuda import SHARED, Block, Slide
from lamina.accelerate.methods.circulant.window import Window
from lamina.accelerate.runtime import nvrtc as cuda
from lamina.accelerate.runtime.nvrtc import Kernel
from lamina.errors import MissingError
from lamina.testing.cuda_on_cpu import KernelOnCpu

from ..test_ops import plain_mix

CASES = {  # window, p, q, type, parts
    "square": (Window(2, 5, 6, 3, 3, 1, 1, 1, 1), 4, 4, torch.float16, 1),
    "two parts": (Window(2, 5, 6, 3, 3, 1, 1, 1, 1), 4, 6, torch.float16, 2),
    "bfloat16, dilated, odd blocks": (Window(1, 6, 5, 3, 2, 1, 1, 0, 1, 2, 1), 3, 5, torch.bfloat16, 1),
    "strided, one block": (Window(2, 7, 6, 3, 3, 2, 2, 1, 1), 2, 1, torch.float16, 2),
    "along a line, padded far": (Window(3, 1, 9, 1, 5, 1, 1, 0, 6), 9, 2, torch.float16, 1),
}
LARGE = {
    "wide": (Window(16, 33, 130, 3, 3, 1, 1, 1, 1), 3, 4, torch.float16, 1),
    "many blocks": (Window(64, 14, 14, 3, 3, 1, 1, 1, 1), 14, 7, torch.bfloat16, 1),
    "large window in two parts": (Window(32, 27, 29, 5, 5, 1, 1, 2, 2), 8, 2, torch.float16, 2),
    "pixels of one block": (Window(16, 57, 59, 3, 3, 1, 1, 1, 1), 2, 1, torch.float16, 2),
    "pixels of two blocks": (Window(16, 112, 113, 3, 3, 1, 1, 1, 1), 2, 2, torch.bfloat16, 1),
    "strided in two parts": (Window(64, 30, 31, 3, 3, 2, 2, 1, 1), 6, 5, torch.float16, 2),
}


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, poisoned_empty: None) -> Iterator[None]:
    """Tiles of at most three rows, for one warp."""
    fitted = Slide.fitted

    def small(slide: Slide, *asked: Any) -> Block | None:
        block = fitted(slide, *asked)
        return block and replace(block, high=min(block.high, 3), warps=1, shares=1)

    monkeypatch.setattr(Slide, "fitted", small)
    monkeypatch.setattr(halo, "kind", KernelOnCpu)
    monkeypatch.setattr(halo, "SMALL", 0)
    cuda._planned.cache_clear()
    with torch.device("cpu"):
        yield
    cuda._planned.cache_clear()


def spectrum(dtype: torch.dtype, parts: int, *shape: int) -> Tensor:
    numbers = torch.randn(shape)
    high = numbers.to(dtype)
    return high if parts == 1 else torch.stack([high, (numbers - high).to(dtype)])


def exact(spectrum: Tensor) -> Tensor:
    return (spectrum.double().sum(0) if spectrum.dim() == 5 else spectrum.double()).requires_grad_()


def check(window: Window, p: int, q: int, dtype: torch.dtype, parts: int, slots: int) -> None:
    """Product and both gradients, to the rounding of what is stored or of float32 sums."""
    xs = spectrum(dtype, parts, slots, window.rows_in, 2, q)
    ws = spectrum(dtype, parts, slots, p * window.taps, 2, q)
    dys = spectrum(dtype, parts, slots, window.rows_out, 2, p)
    stored = torch.float32 if parts == 2 else dtype
    x, w = exact(xs), exact(ws)
    y = plain_mix(x, w, window)
    dx, dw = torch.autograd.grad(y, [x, w], exact(dys))

    ours = torch.full(y.shape, torch.nan, dtype=stored)
    assert cuda.product(xs, ws, ours, window, back=False, down=0.5)
    close(ours, y / 2, stored)
    ours = torch.full(dx.shape, torch.nan, dtype=stored)
    whole_steps = window.stride_height == window.stride_width == 1
    assert cuda.product(dys, ws, ours, window, back=True, down=1.0) == whole_steps
    if whole_steps:
        close(ours, dx, stored)
    shares = cuda.weight_gradient(dys, xs, window)
    assert shares is not None
    close(shares.sum(0), dw, torch.float32)


def close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    largest = theirs.abs().max().item()
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(ours.double(), theirs.detach(), rtol=0, atol=tolerance * largest)


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_a_real_convolution(name: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halo, "together", lambda *_: together)
    monkeypatch.setattr(halo, "MOST_SUMS", 100)  # also where it would not pay
    monkeypatch.setattr(halo, "SUMS", {1: 100, 2: 100})
    check(*CASES[name], slots=2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_large_products_are_those_of_a_real_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halo, "SMALL", 0)
    with torch.device("cuda"):
        check(*LARGE[name], slots=4)


@pytest.mark.usefixtures("on_the_cpu")
def test_what_is_not_finite_spoils_what_reads_it_alone() -> None:
    window = Window(1, 4, 5, 3, 3, 1, 1, 1, 1)
    xs, ws = spectrum(torch.float16, 1, 2, 20, 2, 4), spectrum(torch.float16, 1, 2, 36, 2, 4)
    xs[1, 6] = torch.nan  # row 1, column 1
    y = torch.empty(2, 20, 2, 4, dtype=torch.float16)
    assert cuda.product(xs, ws, y, window, back=False, down=1.0)
    spoilt = y.isnan().any(-1).any(-1).view(2, 4, 5)
    assert not spoilt[0].any()
    assert spoilt[1, :3, :3].all() and spoilt[1].sum() == 9


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(("q", "reached"), [(1, slice(0, 8)), (2, slice(2, 6))])  # by fours and by twos
def test_what_is_not_finite_reaches_the_places_whose_windows_hold_it(q: int, reached: slice) -> None:
    window = Window(1, 4, 11, 3, 3, 1, 1, 1, 1)
    xs, ws = spectrum(torch.float16, 1, 2, 44, 2, q), spectrum(torch.float16, 1, 2, 18, 2, q)
    xs[1, 14] = torch.nan  # row 1, column 3
    y = torch.empty(2, 44, 2, 2, dtype=torch.float16)
    assert cuda.product(xs, ws, y, window, back=False, down=1.0)
    spoilt = y.isnan().any(-1).any(-1).view(2, 4, 11)
    assert not spoilt[0].any()
    assert spoilt[1, :3, reached].all() and spoilt.sum() == spoilt[1, :3, reached].numel()


@pytest.mark.usefixtures("on_the_cpu")
def test_operators_take_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(1, 4, 5, 3, 3, 1, 1, 1, 1)
    xs, ws = spectrum(torch.float16, 1, 2, 20, 2, 2), spectrum(torch.float16, 1, 2, 18, 2, 2)
    dys = spectrum(torch.float16, 1, 2, 20, 2, 2)
    way = [ops.spectral_matmul(xs, ws, window.pack()), *ops.spectral_matmul_backward(dys, xs, ws, window.pack())]
    monkeypatch.setattr(halo, "SMALL", 2**40)
    other = [ops.spectral_matmul(xs, ws, window.pack()), *ops.spectral_matmul_backward(dys, xs, ws, window.pack())]
    for a, b in zip(way, other, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=2e-3, atol=4e-3)


def test_others_are_left_to_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    ws = torch.zeros(2, 18, 2, 2, dtype=torch.float16)

    def taken(window: Window, dtype: torch.dtype = torch.float16, blocks: int = 2) -> bool:
        xs = torch.zeros(2, window.rows_in, 2, blocks, dtype=dtype)
        return cuda.weight_gradient(xs, xs, window) is not None

    square = Window(1, 4, 5, 3, 3, 1, 1, 1, 1)
    assert not cuda.product(torch.zeros(2, 20, 2, 2).half(), ws, ws, square, back=False, down=1.0)  # on the CPU
    monkeypatch.setattr(halo, "kind", Refused)
    assert not taken(square)  # few numbers
    monkeypatch.setattr(halo, "SMALL", 0)
    with pytest.raises(NotImplementedError):
        taken(square)
    assert not taken(square, torch.float32)
    assert not taken(replace(square, groups=2))
    assert not taken(Window(1, 4, 5))
    assert not taken(square, blocks=17)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_sources_compile_for_gpus_with_copies_that_nothing_waits_for(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    try:
        cuda._nvrtc()
    except MissingError:
        pytest.skip("NVRTC is not installed")
    for window, p, q, dtype, parts in CASES.values():
        for name in ("product", "weight_gradient"):
            launch = cuda._planned(Kernel, name, SHARED, dtype, 32, window, q, p, parts, False)
            assert launch is not None and isinstance(launch.kernel, Kernel)
            assert cuda.compiled(launch.kernel.source, architecture, launch.kernel.options)


class Refused(Kernel):
    """A kernel that is not to be run."""

    def launch(self, *_: object, **__: object) -> None:
        raise NotImplementedError


SIZES = st.integers(1, 300)
FEW = st.integers(1, 5)


@given(SIZES, SIZES, FEW, FEW, st.integers(1, 2), st.integers(1, 3), st.integers(1, 16), st.integers(1, 16), FEW)
def test_tiles_fit_and_cover_the_image(
    height: int, width: int, down: int, across: int, stride: int, dilation: int, read: int, made: int, parts: int
) -> None:
    reach = max((down - 1) * dilation, (across - 1) * dilation)
    sizes = 3, height + reach, width + reach, down, across, stride, stride
    window = Window(*sizes, dilation_height=dilation, dilation_width=dilation)
    slide = Slide(window, read, made, 1 + parts % 2, halo.together(window, read, made))
    for (name, _), blocks in halo.BLOCKS.items():
        size = slide.product_bytes if name == "product" else slide.gradient_bytes
        for asked in blocks:
            block = slide.fitted(asked, size)
            if block is None:  # not even a line
                assert size(replace(asked, wide=min(slide.width, 32))) > SHARED - 1024
                continue
            assert size(block) * block.blocks <= SHARED
            assert 1 <= block.high <= window.out_height and 1 <= block.wide <= slide.width
            assert block.high * block.wide <= max(asked.places, block.wide)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("size", "read", "made"), [(112, 1, 2), (56, 4, 4), (28, 8, 8), (14, 8, 8)])
def test_blocks_hold_lines_of_the_convolutions_of_a_large_network(
    size: int, read: int, made: int, parts: int
) -> None:
    window = Window(64, size, size, 3, 3, 1, 1, 1, 1)
    slide = Slide(window, read, made, parts, halo.together(window, read, made))
    for name, room in (("product", slide.product_bytes), ("weight_gradient", slide.gradient_bytes)):
        asked = halo.BLOCKS[name, parts][-1]
        block = slide.fitted(asked, room)
        assert block is not None and block.blocks == asked.blocks and block.wide == slide.width
