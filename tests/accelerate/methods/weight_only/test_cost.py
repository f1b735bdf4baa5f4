"""Formats are chosen where layers are memory-bound, and refused where they are not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.accelerate.methods.weight_only.cost import FEW_ROWS, H200, Rates, choose
from lamina.errors import UsageError

BARE = Rates(4000.0, 800e3, dequantization=1.25, streaming=1.0, general=1.0, cached=1e9)
"""Bytes and operations alone."""

LAYERS = ((4096, 9216), (4096, 4096), (1000, 4096), (4096, 25088))
RESULTS = Path(__file__).parents[4] / "benchmarks" / "results"
(TABLE,) = RESULTS.glob("fission_weights_nvidia-h100-*.json")
H100 = replace(H200, read_gbs=3100.0, product_gflops=800e3)
"""As the selection has it: fractions and fixed times fitted to an H200, the device's own measured rates."""


def test_few_rows_are_bound_by_reading_the_weights() -> None:
    few = choose(1, 4096, 9216, BARE)
    assert few.format == "e4m3" and few.dense_us / few.stored_us == pytest.approx(2, rel=0.01)
    assert few.stored_us == pytest.approx((4096 * 9216 + 2 * (4096 + 9216)) / 4e6)
    assert "e4m3: predicted" in few.reason and "<" in few.reason


def test_many_rows_keep_the_dense_layer() -> None:
    many = choose(4096, 4096, 9216, BARE)
    weights, beside = 4096 * 9216, 4096 * (4096 + 9216)
    assert many.format is None and many.stored_us > 1.25 * many.dense_us
    assert many.stored_us == pytest.approx((weights + 2 * beside) / 4e6 + 1.25 * 2 * 4096 * weights / 8e8)
    assert choose(1, 4096, 4096, BARE, "deft16").format is None  # as many bytes as bfloat16


def test_float32_has_twice_as_many_bytes_to_save() -> None:
    few = choose(1, 4096, 9216, BARE, dense_bits=32)
    assert few.format == "e4m3" and few.dense_us / few.stored_us == pytest.approx(4, rel=0.03)
    assert few.stored_us == pytest.approx((4096 * 9216 + 4 * (4096 + 9216)) / 4e6 + 1.25 * 2 * 4096 * 9216 / 8e8)
    assert few.dense_us == pytest.approx(4 * (4096 * 9216 + 4096 + 9216) / 4e6)
    upper = choose(1, 4096, 4096, BARE, "deft16", dense_bits=32)
    assert upper.format == "deft16" and upper.dense_us / upper.stored_us == pytest.approx(2, rel=0.03)
    assert upper.stored_us == pytest.approx((2 * 4096 + 8) * 4096 / 4e6 + 1.25 * 2 * 4096 * 4096 / 8e8)


def test_more_rows_never_bring_a_format_back() -> None:
    for rates in (H200, BARE, Rates(4450.0, 800e3)):
        for outputs, inputs in LAYERS:
            chosen = [choose(rows, outputs, inputs, rates).format is not None for rows in range(1, 400)]
            assert chosen == sorted(chosen, reverse=True)


def test_a_gain_inside_the_margin_is_none() -> None:
    one = choose(1, 4096, 4096, BARE)
    gain = one.dense_us / one.stored_us
    assert choose(1, 4096, 4096, BARE, margin=1 - 1 / gain + 1e-6).format is None
    assert choose(1, 4096, 4096, BARE, margin=1 - 1 / gain - 1e-6).format == "e4m3"


def test_rows_beyond_eight_are_read_again() -> None:
    eight, nine = (choose(rows, 4096, 9216, H200).stored_us for rows in (8, 9))
    assert nine - eight > 4096 * 9216 / 2 / H200.cached / H200.read_gbs / 1e3
    assert choose(FEW_ROWS, 4096, 9216, H200).format == "e4m3"


def measured() -> list[dict[str, Any]]:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    stored = [row for row in rows if row["impl"] == "weight-only[format=e4m3,impl=kernel]"]
    assert {row["l2"] for row in stored} == {"warm", "cold"}
    return stored


def chosen(row: dict[str, Any], rates: Rates) -> bool:
    return choose(row["batch"], row["outputs"], row["inputs"], rates).format is not None


@pytest.mark.parametrize("rates", [H100, H200])
def test_chosen_formats_lose_nowhere(rates: Rates) -> None:
    picked = [row for row in measured() if chosen(row, rates)]
    assert picked and all(row["speedup"] > 0.98 for row in picked)


def test_formats_that_are_not_chosen_gain_at_few_batch_sizes_alone() -> None:
    missed = [row for row in measured() if row["speedup"] >= 1.02 and not chosen(row, H100)]
    assert {row["batch"] for row in missed} == {32, 64} and len(missed) <= len(measured()) / 8


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 each"):
        choose(0, 1, 1, BARE)
    for wrong in ({"read_gbs": 0.0}, {"dequantization": 0.5}, {"start_us": -1.0}, {"general": 0.0}):
        with pytest.raises(UsageError, match="positive rates"):
            Rates(**({"read_gbs": 1.0, "product_gflops": 1.0} | wrong))
