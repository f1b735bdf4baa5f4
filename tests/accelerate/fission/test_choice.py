"""Formats are chosen where bytes bind, and refused where they do not."""

import pytest

from lamina.accelerate.fission.choice import Rates, choose, predicted_us
from lamina.errors import UsageError

H200_LIKE = Rates(read_gbs=4000.0, product_gflops=800e3)


def test_few_rows_are_bound_by_the_weights_bytes() -> None:
    few = choose(1, 4096, 9216, H200_LIKE)
    assert few.format == "e4m3" and few.dense_us / few.stored_us == pytest.approx(2, rel=0.01)
    assert few.stored_us == pytest.approx((4096 * 9216 + 2 * (4096 + 9216)) / 4e6)
    assert "e4m3: predicted" in few.reason and "<" in few.reason


def test_many_rows_keep_the_dense_layer() -> None:
    many = choose(4096, 4096, 9216, H200_LIKE)
    assert many.format is None and many.stored_us == pytest.approx(1.25 * many.dense_us)
    assert choose(1, 4096, 4096, H200_LIKE, "deft16").format is None  # as many bytes as bfloat16


def test_float32_has_twice_as_many_bytes_to_save() -> None:
    few = choose(1, 4096, 9216, H200_LIKE, dense_bits=32)
    assert few.format == "e4m3" and few.dense_us / few.stored_us == pytest.approx(4, rel=0.01)
    assert few.dense_us == pytest.approx(4 * (4096 * 9216 + 4096 + 9216) / 4e6)
    upper = choose(1, 4096, 4096, H200_LIKE, "deft16", dense_bits=32)
    assert upper.format == "deft16" and upper.dense_us / upper.stored_us == pytest.approx(2, rel=0.01)


def test_a_gain_inside_the_margin_is_none() -> None:
    rows = next(rows for rows in range(1, 4096) if choose(rows, 4096, 4096, H200_LIKE).format is None)
    gain = predicted_us(rows, 4096, 4096, 16, H200_LIKE) / predicted_us(rows, 4096, 4096, 8, H200_LIKE)
    assert gain <= 1 / 0.98 and choose(rows - 1, 4096, 4096, H200_LIKE).format == "e4m3"


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 each"):
        choose(0, 1, 1, H200_LIKE)
    with pytest.raises(UsageError, match="positive rates"):
        Rates(0.0, 1.0)
