import pytest
import torch

from lamina.build.convolution import Geometry, gemm

CASES = [
    ((2, 16, 14, 14), (16, 16, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),
    ((2, 48, 12, 12), (32, 48, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),
    ((3, 8, 15, 13), (8, 4, 5, 3), Geometry((3, 2), (2, 0), (2, 1), 2)),
    ((3, 8, 33), (8, 4, 3), Geometry((1,), (1,), (1,), 2)),
    ((8, 4, 2, 2), (4, 4, 1, 1), Geometry((1, 1), (0, 0), (1, 1))),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounding_is_that_of_the_library(case, dtype, within):
    within("gemm", case, dtype)


def test_transposed_is_rejected():
    assert "not support transposed convolutions" in gemm.refusal(Geometry((1,), (0,), (1,), transposed=True), (1, 1, 3))
