"""Export to ONNX with standard operators, verified against the network."""

from __future__ import annotations

import copy
import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina import run
from lamina.accelerate.methods.circulant.nn import (
    BlockCirculantConv1d,
    BlockCirculantConv2d,
    BlockCirculantLinear,
    BlockCirculantLSTM,
)
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.errors import CheckError, LaminaError, MissingError

PACKAGES = ("onnx", "onnxscript")
LIMIT = 1e-4
"""Largest relative L2 difference between the outputs of file and network, both in float32."""

CIRCULANT = (BlockCirculantLinear, BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLSTM)


def require() -> None:
    """Check that the packages for an export are installed.

    Raises:
        MissingError: a package is not installed.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingError(f"ONNX files need {' and '.join(missing)}: install lamina with its onnx extra")


def plain(model: nn.Module) -> nn.Module:
    """A copy on the CPU, in float32, that computes the same with operators that ONNX has.

    Remaining inputs are a slice or a gather before a dense product, quantized weights are dequantized once, and
    circulant layers use their reference operators: products with a real Fourier basis.
    """
    result = copy.deepcopy(model).float().cpu().eval()
    for name, module in list(result.named_modules()):
        twin: Any = module
        if isinstance(module, Indexed):
            if getattr(module, "by", "channel") == "tap":
                twin = module.to_dense()  # type: ignore[operator]
            elif hasattr(module, "impl"):
                twin.impl = "slice" if module.at.prefix else "gather"
        elif isinstance(module, CIRCULANT):
            module.impl = "reference"
        elif isinstance(module, WeightOnlyLinear | WeightOnlyConv):
            twin = module.to_dense()
        if twin is module:
            continue
        if not name:
            return twin.eval()  # type: ignore[no-any-return]
        parent, _, last = name.rpartition(".")
        setattr(result.get_submodule(parent), last, twin.eval())
    return result


class _OfOneInput(nn.Module):
    """A network with an explicit signature: the exporter takes ``*inputs`` for one argument."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.network(x)
        return y


@torch.no_grad()
def export(model: nn.Module, example: Tensor, path: Path) -> str:
    """Write the file for batches of any size, verify it, and return a summary.

    Args:
        model: a network of one input.
        example: such an input on the CPU.
        path: its folder is made.

    Raises:
        MissingError: a package is not installed.
        LaminaError: torch cannot export the network.
        CheckError: the file's outputs differ from the network's.
    """
    require()
    onnx: Any = importlib.import_module("onnx")
    evaluator: Any = importlib.import_module("onnx.reference").ReferenceEvaluator
    network = plain(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    example = torch.cat([example, example])[:2]  # a batch of 1 would be exported as a constant
    with _quiet():
        try:
            torch.onnx.export(
                _OfOneInput(network).eval(),
                (example,),
                path,
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporter raises whatever its stages do
            raise LaminaError(f"{path}: torch cannot export this network: {run.one_line(error)}") from error
    onnx.checker.check_model(str(path), full_check=True)
    # With another batch size than at export, sizes that were exported as constants are detected.
    x = torch.cat([example, example[:1]])
    try:
        found = torch.from_numpy(evaluator(str(path)).run(None, {"input": x.numpy()})[0].copy())
    except (ValueError, RuntimeError, TypeError) as error:
        raise CheckError(f"{path}: it cannot be run on a batch of {len(x)}: {run.one_line(error)}") from error
    expected = network(x)
    if found.shape != expected.shape:
        raise CheckError(f"{path}: expected outputs {tuple(expected.shape)}, got {tuple(found.shape)}; do not use it")
    apart = run.relative_error([found], [expected])
    if not apart <= LIMIT:
        raise CheckError(f"{path}: expected the network's outputs within {LIMIT:g}, got {apart:.3g}; do not use it")
    operators = [node.op_type for node in onnx.load(str(path)).graph.node]
    counts = ", ".join(f"{operators.count(name)} {name}" for name in sorted(set(operators)))
    return f"{counts}; relative difference to the network {apart:.1e}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of packages that are not needed here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
