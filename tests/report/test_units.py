import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.report import layers, units

Scale = units.Scale
POSITIVE = st.floats(1e-2, 1e12)


def read(text: str, scale: Scale) -> float:
    """Back from text to a number."""
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * {name: length for length, name in scale}[unit]


CASES = [
    (units.duration, units.TIMES),
    (units.count, units.COUNTS),
    (units.rate, units.RATES),
    (units.bandwidth, units.BANDWIDTHS),
    (units.size, units.SIZES),
]


@pytest.mark.parametrize(("show", "scale"), CASES, ids=[show.__name__ for show, _ in CASES])
@given(value=POSITIVE)
def test_text_keeps_three_digits(show, scale: Scale, value: float) -> None:
    error = abs(read(show(value), scale) - value)
    smallest = 0.5 if show is units.size else 0.0
    assert error <= max(0.00501 * value, smallest)


@pytest.mark.parametrize(("show", "scale"), CASES, ids=[show.__name__ for show, _ in CASES])
@given(a=POSITIVE, b=POSITIVE)
def test_text_keeps_order(show, scale: Scale, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert read(show(low), scale) <= read(show(high), scale)


@given(value=st.floats(1e-2, 9e8))
def test_times_stay_short(value: float) -> None:
    number, unit = units.duration(value).split()
    assert len(number.replace(".", "")) <= 5
    assert unit in ("ns", "µs", "ms", "s")


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (999.4, "999 µs"),
        (999.6, "1.00 ms"),
        (9.999, "10.0 µs"),
        (0.25, "250 ns"),
        (3.2e6, "3.20 s"),
        (4.8e9, "4,800 s"),
    ],
)
def test_durations_at_the_edges(us: float, text: str) -> None:
    assert units.duration(us) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (1000, "1.00 K"), (61_100_840, "61.1 M"), (2.5e12, "2.50 T")],
)
def test_counts(number: float, text: str) -> None:
    assert units.count(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (12, "12 B"),
        (1024, "1.00 KiB"),
        (1000 * 1024, "0.977 MiB"),
        (3 * 2**30, "3.00 GiB"),
        (2**50, "1,020 TiB"),
    ],
)
def test_sizes(number: float, text: str) -> None:
    assert units.size(number) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0])
def test_what_is_no_number_does_not_break_a_table(value: float) -> None:
    assert units.number(value) == f"{value:g}"


@pytest.mark.parametrize(
    ("part", "text"), [(0, "0%"), (1e-5, "<0.1%"), (0.0994, "9.9%"), (0.0996, "10%"), (1.3, "130%")]
)
def test_percent(part: float, text: str) -> None:
    assert units.percent(part) == text


@given(st.floats(1e-2, 1e9))
def test_an_axis_has_at_most_three_digits_before_the_point(longest: float) -> None:
    length, unit = units.axis_unit(longest)
    assert (length, unit) in units.TIMES
    assert longest / length < 1000 or unit == "s"


@pytest.mark.parametrize("module", [units, layers])
def test_examples(module) -> None:
    result = doctest.testmod(module)
    assert (result.failed, result.attempted > 0) == (0, True)
