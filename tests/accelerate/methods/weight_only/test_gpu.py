"""Compiled kernels on the shapes they are for and on hostile ones, in every precision, against float64."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.weight_only import WeightOnly, functional, ops, reference, stream
from lamina.accelerate.methods.weight_only.config import FORMATS, Format
from lamina.accelerate.methods.weight_only.formats import Packed, pack, unpack
from lamina.accelerate.papers.on_chip_fission import simt
from lamina.accelerate.papers.on_chip_fission.config import TILES, OnChip, Tile
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate

from ...precisions import TYPES, cut

pytestmark = pytest.mark.gpu

SHAPES = [  # rows, outputs, inputs: AlexNet's layers with few and many rows, then odd, single and split ones
    *((rows, 4096, 9216) for rows in (1, 16, 128)),
    (8, 1000, 4096),
    (1, 1, 1),
    (17, 33, 77),
    (7, 129, 4097),
    (130, 65, 1000),
    (33, 1000, 25088),
]
EIGHT: tuple[Format, ...] = tuple(format for format in FORMATS if format[0] == "e")
READ = [(format, precision) for format in FORMATS for precision in TYPES if TYPES[precision] in ops.dtypes(format)]
ALL: tuple[OnChip, ...] = ("float", *FORMATS)
IN_TURN = 4.0
"""How much less accurate a sum may be that is taken in turn than the library's, which adds up shares."""


@pytest.fixture
def strict() -> Iterator[None]:
    with precision_mode("fp32", autotune=False):
        yield


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda")


def weights(outputs: int, inputs: int, format: Format) -> Packed:
    """With rows of very different size, and one of zeros."""
    matrix = numbers(outputs, inputs) / inputs**0.5
    matrix[::3] *= 1e-3
    matrix[-1:] *= 0 if outputs > 1 else 1
    return pack(matrix, format, "row")


def by_library(x: Tensor, packed: Packed, b: Tensor | None) -> Tensor:
    """A single row is one of 16, as alone the library would multiply it without tensor cores."""
    rows = x.shape[0]
    return reference.linear(x.expand(16, -1) if rows == 1 else x, packed, b)[:rows]


def hold(x: Tensor, packed: Packed, b: Tensor | None, factor: float, precision: str = "") -> None:
    """To plain torch's accuracy; in TF32, which the library leaves for odd sizes, to that of cut operands."""
    ours = functional.linear(x, packed, b, impl="kernel")
    weight, offset = unpack(packed), None if b is None else b.double()
    exact = F.linear(x.double(), weight.double(), offset)
    if precision == "tf32":
        theirs = F.linear(cut(x).double(), cut(weight).double(), offset).float()
    else:
        theirs = by_library(x, packed, b)
    assert_as_accurate(ours, theirs, exact, worst=factor, mean=factor)


@pytest.mark.parametrize(("format", "precision"), READ)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_layers(precision: str, format: Format, shape: tuple[int, int, int], poisoned_empty: None) -> None:
    rows, outputs, inputs = shape
    x, b = numbers(rows, inputs).to(TYPES[precision]), numbers(outputs).to(TYPES[precision])
    with precision_mode(precision, autotune=False):
        hold(x, weights(outputs, inputs, format), b, 1.5 if precision == "tf32" else 3.0, precision)


@pytest.mark.parametrize("format", EIGHT)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16])
def test_few_rows(format: Format, rows: int, poisoned_empty: None) -> None:
    for outputs, inputs in ((4096, 4096), (4096, 9216), (1000, 4096), (33, 16), (1, 80), (2049, 1040), (2065, 8208)):
        packed = weights(outputs, inputs, format)
        x, b = numbers(rows, inputs).bfloat16(), numbers(outputs).bfloat16()
        assert stream.takes(x, packed.codes, format)
        hold(x, packed, b, 3.0)
        hold(x, packed, None, 3.0)


def test_operands_of_any_strides_and_places() -> None:
    packed = weights(65, 64, "e4m3")
    x = numbers(5, 64).bfloat16()
    expected = functional.linear(x, packed, impl="kernel")
    apart, moved = (torch.zeros(size, device="cuda", dtype=torch.bfloat16) for size in (5 * 65 + 1, 5 * 64 + 1))
    places = [x.mT.contiguous().mT, apart[1:].view(5, 65)[:, :64].copy_(x), moved[1:].view(5, 64).copy_(x)]
    for each in places:
        assert torch.equal(functional.linear(each, packed, impl="kernel"), expected)
    codes = torch.empty(65 * 64 + 3, dtype=torch.uint8, device="cuda")[3:].view(65, 64).copy_(packed.codes)
    again = Packed("e4m3", codes, packed.scale, 64)
    assert torch.equal(functional.linear(x, again, impl="kernel"), expected)


def test_numbers_at_the_ends_of_the_range() -> None:
    for format in ("e4m3", "e7m0", "e1m6"):
        packed = pack(torch.eye(32, device="cuda"), format, "row")  # type: ignore[arg-type]
        for size in (1e-20, 1.0, 1e18):
            x = torch.full((3, 32), size, device="cuda").bfloat16()
            assert torch.equal(functional.linear(x, packed, impl="kernel"), x)
        tiny = torch.full((3, 32), 1e-30, device="cuda").bfloat16()  # below the range: lost, but nothing else
        y = functional.linear(tiny, packed, impl="kernel")
        assert ((y >= 0) & (y <= 2 * tiny)).all()
        x[1, 5], x[2, 7] = float("nan"), float("inf")
        y = functional.linear(x, packed, impl="kernel")
        assert y[0].isfinite().all() and y[1].isnan().all() and not y[2].isfinite().any()


def test_stored_layers_are_compiled_and_captured() -> None:
    model, _ = convert(nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32)).cuda().bfloat16(), WeightOnly())
    x = numbers(4, 64).bfloat16()
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
    assert torch.equal(y, expected)


def on_chip(matrix: Tensor, format: OnChip) -> Tensor:
    """Rows as a product on plain cores reads them: neighbours share a word."""
    if format == "float":
        return matrix
    columns = matrix.shape[1]
    if format != "deft16q":
        return unpack(pack(matrix, format))
    even = F.pad(matrix, (0, columns % 2))
    order = torch.cat([torch.arange(0, even.shape[1], 2), torch.arange(1, even.shape[1], 2)]).to(matrix.device)
    read = torch.empty_like(even)
    read[:, order] = unpack(pack(even[:, order], "deft16q"))
    return read[:, :columns]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("format", ALL)
def test_products_on_plain_cores(format: OnChip, tile: Tile, strict: None, poisoned_empty: None) -> None:
    for rows, outputs, inputs in ((1, 1, 1), (128, 1000, 4096), (65, 97, 33), (3, 4097, 20), (300, 130, 129)):
        x, w = numbers(rows, inputs), numbers(outputs, inputs)
        read, weight = on_chip(x, format), on_chip(w, format)
        y = simt.linear(x, w, format=format, tile=tile)
        assert_as_accurate(y, read @ weight.mT, read.double() @ weight.double().mT, worst=IN_TURN, mean=IN_TURN)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("format", ALL)
def test_convolutions_on_plain_cores(format: OnChip, tile: Tile, strict: None) -> None:
    cases = [
        ((4, 96, 27, 27), 256, Conv2dGeometry.of((5, 5), padding=(2, 2))),
        ((3, 256, 13, 13), 384, Conv2dGeometry.of((3, 3), padding=(1, 1))),
        ((2, 3, 17, 9), 5, Conv2dGeometry(3, 2, 2, 1, 1, 1, 1, 2)),
        ((1, 1, 1, 1), 1, Conv2dGeometry()),
        ((5, 7, 6, 31), 67, Conv2dGeometry(4, 1, 1, 3, 3, 0)),
    ]
    for images, outputs, conv in cases:
        x, w = numbers(*images), numbers(outputs, images[1], *conv.kernel)
        y = simt.conv2d(x, w, conv.stride, conv.padding, conv.dilation, format=format, tile=tile)
        columns = F.unfold(x, conv.kernel, conv.dilation, conv.padding, conv.stride).mT
        read = on_chip(columns.flatten(0, 1), format).view(columns.shape)
        weight = on_chip(w.flatten(1), format)
        plain, exact = ((a @ b.mT).mT.reshape(y.shape) for a, b in ((read, weight), (read.double(), weight.double())))
        assert_as_accurate(y, plain, exact, worst=IN_TURN, mean=IN_TURN)
        if format == "float":
            library = partial(F.conv2d, stride=conv.stride, padding=conv.padding, dilation=conv.dilation)
            assert_as_accurate(y, library(x, w), library(x.double(), w.double()), worst=IN_TURN, mean=IN_TURN)


@pytest.mark.parametrize("format", ALL)
def test_words_are_read_bit_by_bit(format: OnChip) -> None:
    bits = torch.randint(-(2**31), 2**31, (1, 2**18), device="cuda").int()
    random = bits.view(torch.float32)
    random = torch.where(random.isfinite(), random, 0.0)
    if format == "half":
        random = random.clamp(-65504, 65504)
    values = torch.cat([random, numbers(1, 2**16) * 1e-3], 1)
    read = simt.through(values[0], format)
    assert torch.equal(read.view(torch.int32), on_chip(values, format)[0].contiguous().view(torch.int32))
