"""The package without Triton, which PyTorch for the CPU does not bring: all but the kernels imports and runs."""

import subprocess
import sys

import pytest

BLOCK = """
import importlib.util, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "triton" else find_spec(name, package)
sys.meta_path.insert(0, Missing())
"""
IMPORT_ALL = """
import importlib, pkgutil, lamina
for module in pkgutil.walk_packages(lamina.__path__, "lamina."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(error.name, module.name)
"""
CONVERT = """
import torch, lamina
from torch import nn
x = torch.randn(2, 3, 16, 16)
for config in (lamina.Circulant(4), lamina.Eliminated(keep=0.5), lamina.WeightOnly(), lamina.Sparse(), lamina.Fusion()):
    def net():
        layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(2304, 8)
        return nn.Sequential(*layers).eval()

    model, record = lamina.convert(net(), config)
    assert record.replaced and model(x).shape == (2, 8), config
    model, record = lamina.convert(net(), config, example=x, select="measure", limit_s=0.0)
    timed = [layer for layer in record.layers if layer.selection is not None]
    assert model(x).shape == (2, 8) and (timed or isinstance(config, lamina.Sparse)), config
try:
    lamina.convert(nn.Linear(8, 8), lamina.Circulant(4, impl="kernel"))[0](torch.randn(1, 8))
except lamina.errors.LaminaError as error:
    print(error)
"""
KERNELS = ("kernels", "ops", "launch", "launches", "layer_ops", "scaled_fp16", "im2col", "triton_ops", "triton_utils")
"""Modules that only kernels import."""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_kernels_import_triton() -> None:
    lines = [line.split() for line in run(IMPORT_ALL).splitlines()]
    assert {library for library, _ in lines} <= {"triton", "numba"}
    wrong = [name for library, name in lines if library == "triton" and name.rpartition(".")[2] not in KERNELS]
    assert wrong == ["lamina.accelerate.methods.circulant.materialized.convolution"]


@pytest.mark.filterwarnings("ignore")
def test_layers_convert_and_run() -> None:
    assert "Triton" in run(CONVERT)
