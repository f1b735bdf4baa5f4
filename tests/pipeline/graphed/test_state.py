"""What a replay may differ by from eager mode."""

import pytest
import torch

from lamina import run
from lamina.errors import CheckError
from lamina.pipeline.graphed.state import judge

X = torch.ones(8)


@pytest.mark.parametrize(
    ("precision", "products", "dtype", "limit"),
    [
        ("fp32", None, torch.float32, 1e-5),
        ("tf32", None, torch.float32, 2.0**-11),
        ("fp32", torch.float16, torch.float32, 2.0**-11),
        ("fp32", torch.bfloat16, torch.float32, 2.0**-8),
        ("tf32", None, torch.bfloat16, 2.0**-8),
    ],
)
def test_a_replay_may_differ_by_the_rounding_of_its_products(
    precision: str, products: torch.dtype | None, dtype: torch.dtype, limit: float
) -> None:
    eager = X.to(dtype)
    with run.precision_mode(precision):
        judge([X * (1 + 0.9 * limit)], [eager], [eager], "outputs", products)
        with pytest.raises(CheckError, match="outputs by a CUDA graph differ"):
            judge([X * (1 + 1.2 * limit)], [eager], [eager], "outputs", products)


def test_a_replay_may_differ_by_more_where_eager_runs_do() -> None:
    with run.precision_mode("fp32"):
        judge([X * 1.03], [X], [X * 1.01], "outputs")
        with pytest.raises(CheckError):
            judge([X * 1.05], [X], [X * 1.01], "outputs")
        with pytest.raises(CheckError):
            judge([X * torch.nan], [X], [X], "outputs")
