"""Every format, bit by bit, against a definition that knows nothing of it but its name."""

import math
import struct
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lamina.accelerate.methods.weight_only.config import FORMATS, Format, WeightOnly
from lamina.accelerate.methods.weight_only.formats import Packed, errors, largest, pack, table, unpack
from lamina.errors import UsageError

EIGHT: list[Format] = [format for format in FORMATS if format[0] == "e"]
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)


def decoded(code: int, bits: int) -> float:
    """An 8-bit code by the formula of IEEE 754, without infinities."""
    sign, exponent, mantissa = code >> 7, code >> (7 - bits) & ((1 << bits) - 1), code & ((1 << (7 - bits)) - 1)
    fraction, offset = mantissa / 2 ** (7 - bits), 2 ** (bits - 1) - 1
    size = fraction * 2.0 ** (1 - offset) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - offset)
    return -size if sign else size


def upper(x: float) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    (cut,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(cut)


@pytest.mark.parametrize("format", EIGHT)
def test_every_code_means_what_the_formula_says(format: Format) -> None:
    meant = [decoded(code, int(format[1])) for code in range(256)]
    assert table(int(format[1])).tolist() == meant
    packed = Packed(format, torch.arange(256, dtype=torch.uint8)[None], torch.ones(1), 256)
    assert unpack(packed)[0].tolist() == meant


def test_e4m3_is_the_common_one_below_its_top() -> None:
    ours, theirs = table(4), torch.arange(256, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn).float()
    same = ours == theirs
    assert same.sum() == 254 and not same[[0x7F, 0xFF]].any()  # their NaN is a number here


def test_a_format_does_not_remember_the_device_it_was_first_used_on() -> None:
    table.cache_clear()
    with torch.device("meta"):
        assert table(4).device.type == "cpu"
    assert pack(torch.ones(1, 1), "e4m3").codes.tolist() == [[0x38]]


@pytest.mark.parametrize("format", EIGHT)
@given(values=st.lists(FLOATS, min_size=1, max_size=8))
def test_the_nearest_code_is_stored_and_ties_go_to_the_even_one(format: Format, values: list[float]) -> None:
    bits = int(format[1])
    numbers = [decoded(code, bits) for code in range(128)]
    halfway = [(a + b) / 2 for a, b in pairwise(numbers)]
    wanted = torch.tensor([*values, *halfway[:4], *halfway[-2:]], dtype=torch.float32)
    codes = pack(wanted[None], format).codes[0].tolist()
    for value, code in zip(wanted.tolist(), codes, strict=True):
        size = min(abs(value), numbers[-1])
        best = min(range(128), key=lambda c: (abs(numbers[c] - size), c % 2))
        assert code & 127 == best and (code >> 7) == (math.copysign(1, value) < 0)


@given(values=st.lists(FLOATS, min_size=2, max_size=9))
def test_deft_16_cuts_and_deft_16q_leaves_the_neighbour_in_the_low_bits(values: list[float]) -> None:
    weight = torch.tensor([values], dtype=torch.float32)
    assert unpack(pack(weight, "deft16"))[0].tolist() == [upper(x) for x in weight[0].tolist()]
    read = unpack(pack(weight, "deft16q"))
    half = -(-len(values) // 2)
    assert read.shape == weight.shape
    bits, stored = read.view(torch.int32)[0], weight.view(torch.int32)[0]
    for place, (mine, theirs) in enumerate(zip(bits.tolist(), stored.tolist(), strict=True)):
        assert mine >> 16 == theirs >> 16
        assert mine & 0xFFFF == (stored[place - half].item() >> 16) & 0xFFFF if place >= half else mine & 0xFFFF == 0


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_read_is_stored_again_as_it_is(format: Format) -> None:
    packed = pack(torch.randn(5, 7), format, "row")
    again = pack(unpack(packed), format, "row")
    assert torch.equal(unpack(again), unpack(packed))


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_is_brought_to_the_top_of_the_range_by_a_power_of_two(format: Format) -> None:
    weight = torch.randn(6, 9) * torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e6, 0.0])[:, None]
    packed = pack(weight, format, "row")
    mantissa, _ = torch.frexp(packed.scale)
    assert (mantissa == 0.5).all()
    top = (weight / packed.scale[:, None]).abs().amax(1)[:5]
    if format not in ("deft16", "deft16q"):
        assert ((top <= largest(format)) & (top > largest(format) / 2)).all()
    mantissa_bits = {"half": 10, "deft16": 7, "deft16q": 7}.get(format) or int(format[3])
    assert errors(weight.amax(1, keepdim=True)[:5], pack(weight.amax(1, keepdim=True)[:5], format, "row")).worst <= (
        2.0**-mantissa_bits
    )
    assert (unpack(packed)[5] == 0).all() or format == "deft16q"


def test_cutting_off_is_biased_and_the_neighbour_cancels_that() -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)) * 0.05
    cut, kept = errors(weight, pack(weight, "deft16")), errors(weight, pack(weight, "deft16q"))
    assert -0.0035 < cut.mean < -0.0022 and cut.worst < 2**-7
    upper_half = weight[:, 256:], unpack(pack(weight, "deft16q"))[:, 256:]
    bias = float(((upper_half[1] - upper_half[0]) / upper_half[0]).mean())
    assert abs(bias) < 0.1 * abs(cut.mean) and kept.rms < cut.rms


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_is_stored_as_nothing(format: Format) -> None:
    for shape in ((0, 4), (3, 0)):
        packed = pack(torch.zeros(shape), format, "row")
        assert unpack(packed).shape == shape
    assert errors(torch.zeros(2, 2), pack(torch.zeros(2, 2), format)).worst == 0


@pytest.mark.parametrize(
    ("weight", "format", "said"),
    [
        (torch.tensor([[float("nan")]]), "e4m3", "expected finite elements"),
        (torch.tensor([[float("inf")]]), "deft16", "expected finite elements"),
        (torch.tensor([[7e4]]), "half", "half holds up to 65504"),
        (torch.zeros(3), "e4m3", r"\(outputs, inputs\)"),
        (torch.zeros(2, 2, dtype=torch.int32), "e4m3", "torch.int32"),
        (torch.zeros(2, 2), "e4m4", "did you mean 'e4m3'"),
    ],
)
def test_what_no_format_holds_is_refused(weight: Tensor, format: Format, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        pack(weight, format)


def test_a_configuration_names_what_it_does_not_know() -> None:
    for wrong in ({"format": "fp8"}, {"impl": "kernels"}, {"scaling": "rows"}):
        with pytest.raises(UsageError, match="is unknown"):
            WeightOnly(**wrong)  # type: ignore[arg-type]
