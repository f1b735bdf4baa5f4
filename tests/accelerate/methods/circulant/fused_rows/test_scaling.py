"""Float32 rows under powers of two: as accurate as TF32, whatever the sizes of rows, and local where not finite.

On the CPU as C++ with one warp per block, and with more rows on the GPU.
"""

import pytest
import torch
from torch import Tensor

from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.accelerate.methods.circulant.fused_rows.cuda import RowTile, WeightTile
from lamina.testing import assert_as_accurate
from lamina.testing.cuda_on_cpu import KernelOnCpu

INF, NAN = float("inf"), float("nan")
TWO, STAGED = RowTile(1, 8, 1, item_blocks=2), RowTile(1, 8, 1, splits=2, staged=True, prefetch=True)
AHEAD = RowTile(1, 8, 1, item_blocks=2, prefetch=True, rows_ahead=True)
ONE_BY_ONE = WeightTile(1, 1, 1, 2)
SHARED = RowTile(1, 8, 1, item_blocks=2, shared_spectra=True)
SHAPES = {  # block size, p, q, rows, tiles
    "blocks of 16": (16, 3, 5, 37, SHARED, WeightTile(1, 1, 2, 2)),
    "blocks of 32": (32, 9, 5, 19, STAGED, WeightTile(1, 1, 1)),
    "blocks of 64": (64, 3, 5, 17, AHEAD, WeightTile(1, 2, 1, 2)),
    "blocks of 128": (128, 2, 1, 18, TWO, ONE_BY_ONE),
}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tf32(x: Tensor) -> Tensor:
    """Float32 as TF32 holds it, rounded to nearest; sums of products are exact."""
    rounded = ((x.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).double()


def ours(
    x: Tensor, w: Tensor, dy: Tensor, bias: Tensor | None = None, tile: RowTile | None = None,
    weight_tile: WeightTile | None = None, splits: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Outputs and both gradients, each of whose elements must be written."""
    y, dx, dw = (torch.full_like(like, NAN) for like in (dy, x, w))
    forward, backward = cuda.weight_spectra(w, torch.float32)
    cuda.run_rows(x, forward, bias, y, w.shape[-1], tile)
    cuda.run_rows(dy, backward, None, dx, w.shape[-1], tile)
    cuda.run_weight_gradient(dy, x, dw, weight_tile, splits)
    return [y, dx, dw]


def dense(x: Tensor, w: Tensor, dy: Tensor, bias: Tensor | None = None, rounded: bool = False) -> list[Tensor]:
    """The same by dense products in float64, of exact operands or of those that TF32 multiplies."""
    leaf = w.double().requires_grad_()
    matrix = reference.dense_matrix(leaf, dy.shape[1], x.shape[1])
    right = tf32(matrix.detach().float()) if rounded else matrix.detach()
    x, dy = (tf32(one) if rounded else one.double() for one in (x, dy))
    (dw,) = torch.autograd.grad(matrix, leaf, dy.T @ x)
    y = x @ right.T
    return [y if bias is None else y + bias, dy @ right, dw]


def check(
    x: Tensor, w: Tensor, dy: Tensor, bias: Tensor | None = None, tile: RowTile | None = None,
    weight_tile: WeightTile | None = None, splits: int | None = None, sizes: Tensor | float = 1.0, mean: float = 2.0,
    slices: bool = True,
) -> None:  # fmt: skip
    """Bound the errors of outputs and gradients by those of TF32; rows of ``x`` have ``sizes``, of ``dy`` the inverse.

    Spectral matmuls round three times instead of twice, so the worst of few elements may have a larger error.
    """
    results = ours(x, w, dy, bias, tile, weight_tile, splits)
    plain, exact = (dense(x, w, dy, bias, rounded) for rounded in (True, False))
    for what, scale, *each in zip(("y", "dx", "dw"), (1 / sizes, sizes, 1.0), results, plain, exact, strict=True):
        a, b, c = (one.double() * scale for one in each)
        assert_as_accurate(a.float(), b.float(), c, worst=3.0, mean=mean, slices=slices, what=what)


def problem(shape: str, x_scale: Tensor | float = 1.0, dy_scale: Tensor | float = 1.0) -> tuple[Tensor, ...]:
    k, p, q, rows, *_ = SHAPES[shape]
    w = random(p, q, k, seed=2) / (q * k) ** 0.5
    return random(rows, q * k) * x_scale, w, random(rows, p * k, seed=1) * dy_scale


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", SHAPES)
def test_as_accurate_as_tf32(shape: str) -> None:
    k, p, _, _, *tiles = SHAPES[shape]
    check(*problem(shape), random(p * k), *tiles, splits=2)  # type: ignore[arg-type]


def row_sizes(rows: int, exponents: float) -> Tensor:
    """Sizes from ``10**-exponents`` to ``10**exponents``, in an order that is neither up nor down."""
    order = torch.arange(rows) * 7 % rows
    return (10.0 ** (2 * exponents * order / (rows - 1) - exponents))[:, None]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", ["blocks of 16", "blocks of 64"])
def test_rows_of_all_sizes_are_as_accurate(shape: str) -> None:
    *_, rows, tile, weight_tile = SHAPES[shape]
    for exponents, w_scale in ((30, 1.0), (20, 1e-10)):
        sizes = row_sizes(rows, exponents)
        x, w, dy = problem(shape, sizes, 1 / sizes)
        check(x, w * w_scale, dy, None, tile, weight_tile, 2, sizes.double())


@pytest.mark.usefixtures("emulated")
def test_small_blocks_beside_large_ones_are_as_accurate() -> None:
    x, w, dy = problem("blocks of 64")
    x[:8, :128] *= 1e-6
    x[8:, 200:] *= 1e-6
    check(x, w, dy, None, TWO, WeightTile(1, 1, 2, 2), 1)


@pytest.mark.usefixtures("emulated")
def test_single_large_elements_are_as_accurate() -> None:
    x, w, dy = problem("blocks of 64")
    x[3, 5], x[4, 300], dy[5, 100] = 1234.5, -1234.5, 1234.5
    # A dense product rounds a large element once for all outputs, a transform all slots of its block.
    check(x, w, dy, None, TWO, WeightTile(1, 1, 2, 2), 1, mean=3.0, slices=False)


@pytest.mark.usefixtures("emulated")
def test_zeros_and_the_extremes_of_float32() -> None:
    x, w, dy = problem("blocks of 16")
    x[1], x[2:5], dy[5] = 0, 0, 0
    x[6] *= 1e-37  # with subnormal numbers
    x[7] *= 5e37
    dy[7] *= 1e-38
    check(x, w * 0.5, dy, None, TWO, ONE_BY_ONE, 2)
    for operands in ((x * 0, w, dy), (x, w * 0, dy), (x, w, dy * 0)):
        results = ours(*operands, None, TWO, ONE_BY_ONE, 2)
        assert sum(not result.any() for result in results) == 2
        assert all(result.isfinite().all() for result in results)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", ["blocks of 16", "blocks of 128"])
def test_the_largest_possible_sums_do_not_overflow(shape: str) -> None:
    k, p, q, *_ = SHAPES[shape]
    x, w, dy = torch.full((3, q * k), 3.99), torch.full((p, q, k), 3.99), torch.full((3, p * k), 3.99)
    x[1] *= -1
    for result, exact in zip(ours(x, w, dy, None, TWO, ONE_BY_ONE), dense(x, w, dy), strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=2e-3, atol=0)


@pytest.mark.usefixtures("emulated")
def test_nonfinite_values_affect_only_their_own_rows_and_blocks() -> None:
    x, w, dy = problem("blocks of 16")
    expected = ours(x, w, dy, None, TWO, ONE_BY_ONE, 2)
    broken, dy_broken = x.clone(), dy.clone()
    broken[1, 5], broken[2, 20], broken[3, 4], broken[20] = NAN, INF, -INF, NAN  # of rows 1 to 3, only blocks 0 and 1
    dy_broken[4, 40] = INF
    y, dx, dw = ours(broken, w, dy_broken, None, TWO, ONE_BY_ONE, 2)
    rows = torch.ones(len(x), dtype=torch.bool)
    rows[[1, 2, 3, 20]] = False
    assert not y[~rows].isfinite().any()
    assert torch.equal(y[rows], expected[0][rows])
    assert not dx[4].isfinite().any()
    assert torch.equal(dx[torch.arange(len(x)) != 4], expected[1][torch.arange(len(x)) != 4])
    assert not dw.isfinite().any()  # row 20 has them in all blocks
    broken[20] = x[20]
    dw = ours(broken, w, dy_broken, None, TWO, ONE_BY_ONE, 2)[2]
    finite = torch.ones(w.shape[:2], dtype=torch.bool)
    finite[:, :2] = finite[2] = False
    assert not dw[~finite].isfinite().any()
    exact = dense(x, w, dy)[2]
    assert (dw[finite] - exact[finite]).norm() < 2e-3 * exact[finite].norm()


@pytest.mark.usefixtures("emulated")
def test_a_nonfinite_weight_affects_only_its_block() -> None:
    x, w, dy = problem("blocks of 16")
    w[1, 2, 3] = INF
    y, dx, _ = ours(x, w, dy, None, TWO, ONE_BY_ONE, 2)
    exact = dense(x, w.nan_to_num(posinf=0), dy)
    for result, wanted, block in ((y, exact[0], 1), (dx, exact[1], 2)):
        broken = torch.zeros(result.shape[1], dtype=torch.bool)
        broken[block * 16 : block * 16 + 16] = True
        assert not result[:, broken].isfinite().any()
        assert (result - wanted)[:, ~broken].norm() < 2e-3 * wanted[:, ~broken].norm()


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(64, 20, 9, 1001), (32, 9, 23, 1500), (128, 3, 5, 1003), (16, 33, 7, 1009)])
def test_rows_of_all_sizes_are_as_accurate_on_the_gpu(sizes: tuple[int, int, int, int]) -> None:
    k, p, q, rows = sizes
    scale = row_sizes(rows, 30)
    x, w, dy = random(rows, q * k) * scale, random(p, q, k) / (q * k) ** 0.5, random(rows, p * k, seed=1) / scale
    x[5], dy[7] = 0, 0
    check(x.cuda(), w.cuda(), dy.cuda(), sizes=scale.double().cuda())


@pytest.mark.gpu
def test_nonfinite_values_affect_only_their_own_rows_on_the_gpu() -> None:
    x, w, dy = random(1001, 320).cuda(), random(7, 5, 64).cuda() / 18, random(1001, 448, seed=1).cuda()
    expected = ours(x, w, dy)
    x[100, 5], x[200, 100], dy[300, 7] = NAN, INF, -INF
    y, dx, _ = ours(x, w, dy)
    for result, wanted, rows in ((y, expected[0], [100, 200]), (dx, expected[1], [300])):
        finite = torch.ones(1001, dtype=torch.bool)
        finite[rows] = False
        assert not result[~finite].isfinite().any()
        assert torch.equal(result[finite], wanted[finite])
