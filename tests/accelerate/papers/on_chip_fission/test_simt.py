"""Fission on chip: the CUDA source, run on the CPU, reads what the formats' definition says and sums it right."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.weight_only.config import FORMATS
from lamina.accelerate.methods.weight_only.formats import pack, unpack
from lamina.accelerate.papers.on_chip_fission import functional, simt
from lamina.accelerate.papers.on_chip_fission.config import TILES, OnChip, Tile
from lamina.errors import MissingError, UsageError
from lamina.testing import assert_as_accurate

from ...waiting import no_waiting

ALL: tuple[OnChip, ...] = ("float", *FORMATS)


def as_read(matrix: Tensor, format: OnChip) -> Tensor:
    """Rows as a product reads them, by the definition of the format: neighbours share a word."""
    if format == "float":
        return matrix
    columns = matrix.shape[1]
    even = F.pad(matrix, (0, columns % 2))
    if format != "deft16q":
        return unpack(pack(matrix, format))
    # The definition pairs a value with the one half a row on.
    order = torch.cat([torch.arange(0, even.shape[1], 2), torch.arange(1, even.shape[1], 2)])
    read = torch.empty_like(even)
    read[:, order] = unpack(pack(even[:, order], "deft16q"))
    return read[:, :columns]


def test_a_table_leads_past_channels_that_are_not_kept(without_gpu: None, poisoned_empty: None) -> None:
    index = torch.tensor([0, 3, 4])
    conv = Conv2dGeometry(3, 2, 2, 1, 1, 1, 1, 2)
    for format in ("float", "deft16q"):
        x, w = torch.randn(2, 6, 7, 5), torch.randn(5, 3, 3, 2)
        taps = simt.taps(6, 7, 5, conv.kernel, conv.dilation, x.device, index)
        steps = conv.stride, conv.padding, conv.dilation
        y = simt.conv2d(x, w, *steps, format=format, tile=4, taps=taps)  # type: ignore[arg-type]
        same = simt.conv2d(x[:, index].contiguous(), w, *steps, format=format, tile=4)  # type: ignore[arg-type]
        assert torch.equal(y, same)
    with pytest.raises(UsageError, match=r"taps: expected \(48, 2\) for 36 taps in all"):
        simt.conv2d(x, torch.randn(5, 6, 3, 2), taps=taps)


def windows_of(x: Tensor, conv: Conv2dGeometry) -> Tensor:
    """``(images, pixels, channels and taps)``."""
    return F.unfold(x, conv.kernel, conv.dilation, conv.padding, conv.stride).mT


def hostile(format: OnChip) -> Tensor:
    """Numbers at the borders of what formats hold: zeros of both signs, subnormal, ties, the largest."""
    spread = torch.randn(40, 32) * torch.logspace(-14, 5, 40)[:, None]
    ties = torch.tensor([1.0, 1.5, 1.25, 1.75, 1.0625, 1.1875, 0.0, -0.0])
    borders = torch.cat([ties * 2.0**power for power in range(-24, 17)])
    extreme = torch.tensor([3.4e38, -3.4e38, 1e-45, -1e-40, 1.1754944e-38, 65504.0, 65535.0, 2.0**-126])
    numbers = torch.cat([spread.flatten(), borders, extreme, -borders])
    if format == "half":
        numbers = numbers.clamp(-65504, 65504)
    return numbers[: numbers.numel() // 4 * 4]


@pytest.mark.parametrize("format", ALL)
def test_a_kernel_reads_what_the_definition_says_bit_by_bit(format: OnChip, without_gpu: None) -> None:
    numbers = hostile(format)[None]
    read = simt.through(numbers[0], format)
    assert torch.equal(read.view(torch.int32), as_read(numbers, format)[0].contiguous().view(torch.int32))


@pytest.mark.parametrize(("format", "tile"), [("float", 4), ("half", 6), ("deft16q", 8), ("e4m3", 8)])
def test_products_sum_what_was_read(format: OnChip, tile: Tile, without_gpu: None, poisoned_empty: None) -> None:
    for rows, outputs, inputs, splits in ((3, 5, 20, None), (3, 65, 37, 2)):
        x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        read, weight = as_read(x, format), as_read(w, format)
        y = simt.linear(x, w, format=format, tile=tile, splits=splits)
        assert_as_accurate(y, read @ weight.mT, read.double() @ weight.double().mT, worst=3.0)


@pytest.mark.parametrize(("format", "tile"), [("float", 4), ("half", 6), ("deft16q", 8)])
def test_convolutions_sum_what_was_read(format: OnChip, tile: Tile, without_gpu: None) -> None:
    cases = [
        ((2, 3, 7, 5), 5, Conv2dGeometry(3, 2, 2, 1, 1, 1, 1, 2), None),
        ((1, 5, 4, 9), 2, Conv2dGeometry.of((2, 3), padding=(0, 2)), 2),
    ]
    for images, outputs, conv, splits in cases:
        x, w = torch.randn(images), torch.randn(outputs, images[1], *conv.kernel)
        y = simt.conv2d(x, w, conv.stride, conv.padding, conv.dilation, format=format, tile=tile, splits=splits)
        columns = windows_of(x, conv)
        read = as_read(columns.flatten(0, 1), format).view(columns.shape)
        weight = as_read(w.flatten(1), format)
        plain, exact = ((a @ b.mT).mT.reshape(y.shape) for a, b in ((read, weight), (read.double(), weight.double())))
        assert_as_accurate(y, plain, exact, worst=3.0)
        if format == "float":
            expected = F.conv2d(x, w, None, conv.stride, conv.padding, conv.dilation)
            torch.testing.assert_close(y, expected)


def test_nothing_comes_of_nothing(without_gpu: None) -> None:
    assert simt.linear(torch.zeros(0, 4), torch.zeros(3, 4)).shape == (0, 3)
    assert torch.equal(simt.linear(torch.zeros(2, 0), torch.zeros(3, 0)), torch.zeros(2, 3))
    assert simt.conv2d(torch.zeros(0, 1, 3, 3), torch.zeros(2, 1, 3, 3)).shape == (0, 2, 1, 1)
    assert simt.through(torch.zeros(0), "half").shape == (0,)


def test_shares_cover_the_sum_in_whole_stages() -> None:
    for outputs, rows, depth in ((4096, 128, 9216), (256, 93312, 2400), (1, 1, 1), (70, 9, 17)):
        for tile in TILES:
            at = simt.plan(outputs, rows, depth, tile)
            assert at.k_per_split % simt.DEPTH == 0
            assert at.k_per_split * (at.splits - 1) < depth <= at.k_per_split * at.splits
    few, many = simt.plan(4096, 128, 9216, 8), simt.plan(256, 93312, 2400, 8)
    assert few.grid[0] * few.grid[1] == 32 and few.splits > 4 >= many.splits


def test_what_does_not_fit_is_refused(without_gpu: None) -> None:
    x, w = torch.zeros(2, 8), torch.zeros(3, 8)
    image = torch.zeros(1, 2, 5, 5)
    faults = [
        (lambda: simt.linear(x, torch.zeros(3, 7)), r"x: expected \(rows, 7\), got \(2, 8\)"),
        (lambda: simt.linear(x.double(), w), "x: expected float32 of 2 dimensions"),
        (lambda: simt.linear(x, w.to("meta")), "weight: expected it on cpu"),
        (lambda: simt.linear(x, w, format="fp8"), "format 'fp8' is unknown"),  # type: ignore[arg-type]
        (lambda: simt.linear(x, w, tile=5), "tile: expected one of 4, 6, 8, got 5"),  # type: ignore[arg-type]
        (lambda: simt.linear(x, w, splits=0), "splits: expected at least 1"),
        (lambda: simt.conv2d(image, torch.zeros(1, 3, 3, 3)), r"x: expected \(N, 3, H, W\)"),
        (lambda: simt.conv2d(image, torch.zeros(1, 2, 7, 7)), "at least as large as the 7x7 kernel"),
        (lambda: simt.through(torch.zeros(3), "half"), "words of 2"),
    ]
    for call, words in faults:
        with pytest.raises(UsageError, match=words):
            call()


def test_the_cpu_is_refused_outside_of_tests() -> None:
    with pytest.raises(MissingError, match="CUDA device"):
        simt.linear(torch.zeros(2, 8), torch.zeros(3, 8))


@pytest.mark.gpu
def test_a_product_of_kept_channels_does_not_wait_for_the_gpu() -> None:
    x, w = torch.randn(2, 6, 7, 5, device="cuda"), torch.randn(5, 3, 3, 3, device="cuda")
    index = torch.arange(0, 6, 2, device="cuda")
    expected = functional.conv2d(x, w, None, index, padding=(1, 1), impl="kernel")
    with no_waiting():
        y = functional.conv2d(x, w, None, index, padding=(1, 1), impl="kernel")
    assert torch.equal(y, expected)
