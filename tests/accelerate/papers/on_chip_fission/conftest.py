"""The CUDA source of the products, run on the CPU."""

from functools import cache

import pytest

from lamina.accelerate.papers.on_chip_fission import simt
from lamina.accelerate.papers.on_chip_fission.config import OnChip, Tile
from lamina.testing.cuda_on_cpu import KernelOnCpu


@cache
def on_cpu(name: str, format: OnChip, tile: Tile, quads: bool, device: str) -> KernelOnCpu:
    return KernelOnCpu(simt.SOURCE.read_text(), name, macros=simt.macros(format, tile, quads))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simt, "kernel", on_cpu)
