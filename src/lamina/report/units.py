"""Values as people read them: three significant digits and a unit that keeps them short."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import floor, isfinite, log10

TIMES = ((1e-3, "ns"), (1.0, "µs"), (1e3, "ms"), (1e6, "s"))
COUNTS = ((1.0, ""), (1e3, "K"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
SIZES = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))
RATES = ((1e-3, "MFLOP/s"), (1.0, "GFLOP/s"), (1e3, "TFLOP/s"), (1e6, "PFLOP/s"))
BANDWIDTHS = ((1e-3, "MB/s"), (1.0, "GB/s"), (1e3, "TB/s"))
FLOWS = ((1.0, "B/s"), (1e3, "KB/s"), (1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s"))

Scale = Sequence[tuple[float, str]]


def duration(us: float) -> str:
    """A time given in microseconds.

    >>> duration(12345.6)
    '12.3 ms'
    """
    return _scaled(us, TIMES)


def durations(low_us: float, high_us: float) -> str:
    """A range of times, with its unit once where both share it.

    >>> durations(98.7, 104.2), durations(990, 1010)
    ('98.7 – 104 µs', '990 µs – 1.01 ms')
    """
    low, high = duration(low_us), duration(high_us)
    same = low.split()[1] == high.split()[1]
    return f"{low.split()[0] if same else low} – {high}"


def sentence(text: str) -> str:
    """A sentence, as it is stored in ASCII, with its times spelled as those of tables.

    >>> sentence("fused 9 us < dense 10.5 us")
    'fused 9 µs < dense 10.5 µs'
    """
    return re.sub(r"(?<=\d) us\b", " µs", text)


def count(number: float) -> str:
    """A number of things: parameters, operations.

    >>> count(61_100_840)
    '61.1 M'
    """
    return _scaled(number, COUNTS).strip()


def size(number: float) -> str:
    """A number of bytes.

    >>> size(1536)
    '1.50 KiB'
    """
    return f"{number:.0f} B" if abs(number) < 1000 else _scaled(number, SIZES)


def rate(gflops: float) -> str:
    """A rate given in GFLOP/s.

    >>> rate(51_200)
    '51.2 TFLOP/s'
    """
    return _scaled(gflops, RATES)


def bandwidth(gbs: float) -> str:
    """A bandwidth given in GB/s.

    >>> bandwidth(4021)
    '4.02 TB/s'
    """
    return _scaled(gbs, BANDWIDTHS)


def number(value: float) -> str:
    """A plain number for a column that has its unit in the heading.

    >>> number(1234.5), number(0.01234)
    ('1,234', '0.0123')
    """
    if value == 0 or not isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - floor(log10(abs(_rounded(value)))))}f}"


def percent(part: float) -> str:
    """A part of one.

    >>> percent(0.3456), percent(0.0123), percent(0.0001)
    ('35%', '1.2%', '<0.1%')
    """
    if 0 < part < 0.0005:
        return "<0.1%"
    return f"{part:.0%}" if abs(part) >= 0.0995 or part == 0 else f"{part:.1%}"


def axis_unit(largest: float, scale: Scale = TIMES) -> tuple[float, str]:
    """How much the best unit for an axis up to ``largest`` is, and its name; times are in microseconds."""
    return next((unit for unit in reversed(scale) if largest >= unit[0]), scale[0])


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _scaled(value: float, scale: Scale) -> str:
    """Round first, then choose the unit: 999.9 µs is 1.00 ms, never 1000 µs."""
    scaled = [(_rounded(value / length), unit) for length, unit in scale]
    short, unit = next((pair for pair in scaled if abs(pair[0]) < 1000), scaled[-1])
    whole = unit == "" and float(value).is_integer()
    return f"{short:.0f}" if whole else f"{number(short)} {unit}"
