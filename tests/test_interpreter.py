"""Kernels and their errors are the same in the faster interpreter.

This file is also a program: the interpreter is made faster once in a process.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

ERRORS = ("a size of 3", "different sizes", "a negative number", "a large number", "two pointers", "out of memory")


def test_results_and_errors_are_those_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if not triton.__version__.startswith("3.6."):
        pytest.skip("only Triton 3.6 is made faster")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


@triton.jit
def kernel(x_ptr, y_ptr, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = rows[:, None] * COLUMNS + columns[None, :]
    inside = (at < n) & (rows[:, None] % 3 != 2)
    x = tl.load(x_ptr + at, mask=inside, other=1)
    y = x * 3 + 2 * x - x
    y = tl.where(x > 1, y, -y) + tl.maximum(x, 2)
    for i in range(tl.cdiv(n, 16)):
        y += i * (7 - i) // 2 - (rows[:, None] - columns[None, :]) % (i + 2)
    for i in tl.static_range(2):
        y += tl.sum(x, axis=i, keep_dims=True) - tl.max(x, axis=1 - i, keep_dims=True)
    y += (tl.program_id(0) + tl.cumsum(rows, 0)[:, None]).to(tl.int64) * 5
    tl.store(y_ptr + tl.program_id(0) * ROWS * COLUMNS + at, y, mask=inside)


@triton.jit
def float_kernel(x_ptr, y_ptr, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at[:, None] * SIZE + at[None, :]) / 4
    y = tl.dot(x.to(tl.float16), tl.trans(x).to(tl.float16)) * 0.1 + 1 / (x * x + 1) + n * x
    y = tl.exp2(tl.sigmoid(y)) - 3e-5 * y + (x == 1) + 1e300 * (x < -1e30)
    low = (y.to(tl.float16) + 1.5).to(tl.float32) * tl.abs(x) + (x.to(tl.bfloat16).to(tl.float32) > 0.5)
    tl.store(y_ptr + at[:, None] * SIZE + at[None, :], low - tl.sqrt(y * y))


@triton.jit
def wrong_kernel(x_ptr, CASE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 4))
    if CASE == 0:
        tl.arange(0, 3)
    elif CASE == 1:
        x + tl.arange(0, 8)
    elif CASE == 2:
        x.to(tl.uint8) * -1
    elif CASE == 3:
        x.to(tl.int32) * (1 << 40)
    elif CASE == 4:
        x_ptr + x_ptr
    else:
        tl.zeros((1 << 11, 1 << 11), tl.float32)


def results() -> list[Any]:
    found: list[Any] = []
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64):
        x = (torch.arange(64) * 37 % 19 - (0 if dtype == torch.uint8 else 9)).to(dtype)
        y = torch.zeros(2, 64, dtype=dtype)
        kernel[(2,)](x, y, 50, ROWS=4, COLUMNS=16)
        found.append(y)
    for dtype in (torch.float16, torch.float32, torch.float64):
        x, y = torch.linspace(-9, 9, 256).to(dtype), torch.zeros(256, dtype=dtype)
        float_kernel[(1,)](x, y, 3, SIZE=16)
        found.append(y)
    for case in range(len(ERRORS)):
        try:
            wrong_kernel[(1,)](torch.ones(4), CASE=case)
        except Exception as error:
            found.append((ERRORS[case], type(error), str(error)))
    return found


if __name__ == "__main__":
    from interpreter import speed_up

    slow = results()
    speed_up()
    fast = results()
    assert len(fast) == len(slow) == 10 + len(ERRORS), slow
    for ours, theirs in zip(fast, slow, strict=True):
        if isinstance(ours, tuple):
            assert ours == theirs
        else:
            assert ours.abs().sum() > 0 and torch.equal(ours.nan_to_num(), theirs.nan_to_num()), (ours, theirs)
