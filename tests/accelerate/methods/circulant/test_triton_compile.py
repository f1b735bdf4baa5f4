"""The kernels that layers launch compile for a Hopper GPU, also with sizes of 1, on which Triton specializes.

The interpreter runs kernels that the compiler rejects. This file is therefore also a program that runs without the
interpreter: layers on the CPU, whose launches only compile.
"""

import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests import compiling
from torch import nn

# A transform is one program text for all block sizes from 16 on, unrolled over slices of a block. Two slices take a
# fifth of the time of eight, so one layer of each kind has the largest blocks: four times the size.
CASES = [(2, "fp32"), (32, "fp32"), (64, "bf16")]


@pytest.mark.parametrize(("block_size", "precision"), CASES)
def test_single_rows_and_blocks_compile(block_size: int, precision: str, tmp_path: Path) -> None:
    done = compiling.run(Path(__file__).read_text(), str(block_size), precision, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10


def main(block_size: int, precision: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    from lamina.accelerate.methods.circulant import functional
    from lamina.accelerate.methods.circulant import ops as circulant
    from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear, BlockCirculantLSTM
    from lamina.accelerate.runtime.launch import launch
    from lamina.build import DTYPES

    compiled = set()

    def compile_only(kernel: Any, programs: int, tensor: Any, *args: Any, sizes: Any = None, **constexprs: Any) -> None:
        if programs:
            built = kernel.warmup(*args, grid=(programs,), **constexprs)
            assert built.metadata.shared <= 227 * 1024, kernel.__name__
            compiled.add(built.hash)

    patches = {
        "check_device": nothing,
        "check_kernel_operand": nothing,
        "supports_pdl": lambda _: True,
        "shared_memory": lambda _: 227 * 1024,
    }
    for module in [module for name, module in sys.modules.items() if name.startswith("lamina.accelerate")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value is launch:
                setattr(module, name, compile_only)
            elif name in patches:
                setattr(module, name, patches[name])
    assert functional.check_device is circulant.check_device is nothing
    driver.set_active(SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
    ))  # fmt: skip
    k, dtype = block_size, DTYPES[precision]
    layers: list[tuple[nn.Module, tuple[int, ...]]] = [
        (BlockCirculantLinear(k, k, k, impl="kernel"), (1, k)),
        (BlockCirculantLinear(2 * k - 1, k + 1, k, impl="kernel", signs=True), (5, 2 * k - 1)),
        (BlockCirculantLinear(k, k, k, impl="materialized"), (1, k)),
        (BlockCirculantConv2d(k, 2 * k, 1, block_size=k, impl="kernel"), (1, k, 1, 1)),
        (BlockCirculantConv2d(k, k, 3, padding=1, block_size=k, impl="kernel"), (1, k, 2, 3)),
        (BlockCirculantLSTM(k, k, block_size=k, impl="kernel"), (1, 1, k)),
        (BlockCirculantLSTM(k, k + 1, block_size=k, impl="kernel"), (2, 3, k)),
        (BlockCirculantLinear(8 * k - 1, 4 * k + 1, 4 * k, impl="kernel", signs=True), (5, 8 * k - 1)),
        (BlockCirculantConv2d(4 * k, 4 * k, 3, padding=1, block_size=4 * k, impl="kernel"), (1, 4 * k, 2, 3)),
        (BlockCirculantLSTM(4 * k, 4 * k + 1, block_size=4 * k, impl="kernel"), (2, 3, 4 * k)),
    ]
    for layer, size in layers:
        x = torch.zeros(size, dtype=dtype, requires_grad=True)
        y = layer.to(dtype)(x)
        (y[0] if isinstance(y, tuple) else y).sum().backward()
    sys.stdout.write(str(len(compiled)))


def nothing(*_: Any, **__: Any) -> None:
    """Instead of what would refuse tensors on the CPU."""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
