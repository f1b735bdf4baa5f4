"""Circulant layers as ONNX files: their reference operators, against the dense layers that compute the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant.nn import (
    BlockCirculantConv1d,
    BlockCirculantConv2d,
    BlockCirculantLinear,
    BlockCirculantLSTM,
)
from lamina.pipeline.deft.onnx_file import export


def test_the_file_computes_what_the_dense_layers_do(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    reference: Any = pytest.importorskip("onnx.reference")
    network = nn.Sequential(
        BlockCirculantConv2d(6, 10, 3, stride=2, padding="valid", block_size=5),
        nn.Flatten(2),
        BlockCirculantConv1d(10, 6, 3, dilation=2, block_size=4),
        nn.Flatten(),
        BlockCirculantLinear(30, 12, 8),
    )
    path = tmp_path / "circulant.onnx"
    said = export(network, torch.randn(1, 6, 7, 7), path)
    assert "2 Conv" in said and "1 MatMul" in said
    x = torch.randn(4, 6, 7, 7)
    (found,) = reference.ReferenceEvaluator(str(path)).run(None, {"input": x.numpy()})
    layers: list[Any] = list(network)
    dense = nn.Sequential(*(layer if isinstance(layer, nn.Flatten) else layer.to_dense() for layer in layers))
    expected = dense.double()(x.double())
    torch.testing.assert_close(torch.from_numpy(found.copy()).double(), expected, rtol=1e-4, atol=1e-5)


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)[0][:, -1]
        return y


def test_recurrent_layers_are_written_out_step_by_step(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    reference: Any = pytest.importorskip("onnx.reference")
    layer = BlockCirculantLSTM(6, 8, batch_first=True, block_size=4)
    path = tmp_path / "lstm.onnx"
    export(Last(layer), torch.randn(1, 2, 6), path)
    x = torch.randn(3, 2, 6)
    (found,) = reference.ReferenceEvaluator(str(path)).run(None, {"input": x.numpy()})
    expected = Last(layer.to_dense()).double()(x.double())
    torch.testing.assert_close(torch.from_numpy(found.copy()).double(), expected, rtol=1e-4, atol=1e-5)
