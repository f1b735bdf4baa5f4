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
FITTED = sorted(RESULTS.glob("fission_weights_*nvidia-h200_*.json"))
OTHERS = sorted({*RESULTS.glob("fission_weights_*.json")} - {*FITTED})
H100 = replace(H200, read_gbs=3100.0, product_gflops=800e3)
"""As a selection has it on an H100: what was fitted to an H200, with rates that a recorded run measured, rounded."""


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


def test_there_are_measured_tables() -> None:
    assert FITTED and OTHERS


def measured(table: Path) -> list[dict[str, Any]]:
    kernel = {f"{name}[format=e4m3,impl=kernel]" for name in ("weight-only", "fissioned")}  # a former name
    stored = [row for row in json.loads(table.read_text(encoding="utf-8"))["rows"] if row["impl"] in kernel]
    assert {row["l2"] for row in stored} == {"warm", "cold"}
    return stored


@pytest.mark.parametrize("table", FITTED, ids=lambda path: path.stem)
def test_choices_agree_with_the_measured_tables(table: Path) -> None:
    for row in measured(table):
        chosen = choose(row["batch"], row["outputs"], row["inputs"], H200).format
        assert row["speedup"] > 0.98 if chosen else row["speedup"] < 1.02, (row["layer"], row["batch"], row["l2"])


@pytest.mark.parametrize("table", OTHERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rates", [H200, H100], ids=["rates of an H200", "rates of an H100"])
def test_formats_that_are_chosen_lose_on_no_other_device(table: Path, rates: Rates) -> None:
    """The ratios are not fitted to the others: there the dense layer may stay where a format is faster."""
    chosen = [row for row in measured(table) if choose(row["batch"], row["outputs"], row["inputs"], rates).format]
    assert chosen and all(row["speedup"] > 0.98 for row in chosen)


def test_on_an_h100_gains_are_missed_at_few_batch_sizes_alone() -> None:
    (table,) = OTHERS
    missed = [
        row for row in measured(table)
        if row["speedup"] >= 1.02 and not choose(row["batch"], row["outputs"], row["inputs"], H100).format
    ]  # fmt: skip
    assert {row["batch"] for row in missed} == {32, 64} and len(missed) <= len(measured(table)) / 8


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 each"):
        choose(0, 1, 1, BARE)
    for wrong in ({"read_gbs": 0.0}, {"dequantization": 0.5}, {"start_us": -1.0}, {"general": 0.0}):
        with pytest.raises(UsageError, match="positive rates"):
            Rates(**({"read_gbs": 1.0, "product_gflops": 1.0} | wrong))
