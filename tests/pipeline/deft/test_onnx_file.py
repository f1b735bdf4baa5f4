"""ONNX files: plain operators that compute what the network does, for batches of any size."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.methods.elimination.network import fold
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.errors import CheckError, LaminaError, MissingError
from lamina.pipeline.deft import onnx_file
from lamina.pipeline.deft.onnx_file import export, plain


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 5),
    ).eval()  # fmt: skip


def answers(path: Path, x: Tensor) -> Tensor:
    reference: Any = pytest.importorskip("onnx.reference")
    (result,) = reference.ReferenceEvaluator(str(path)).run(None, {"input": x.numpy()})
    return torch.from_numpy(result.copy())


def operators(path: Path) -> list[str]:
    onnx: Any = pytest.importorskip("onnx")
    return [node.op_type for node in onnx.load(str(path)).graph.node]


@pytest.mark.parametrize("folded", [False, True])
def test_eliminated_networks_are_slices_and_gathers_before_plain_products(tmp_path: Path, folded: bool) -> None:
    pytest.importorskip("onnxscript")
    model, record = convert(network(), Eliminated(keep=0.5))
    assert len(record.replaced) == 4
    model = fold(model)[0] if folded else model
    model = convert(model, WeightOnly("e4m3"), lambda name, _: name == "9")[0] if folded else model
    path = tmp_path / "small.onnx"
    said = export(model, torch.randn(1, 2, 8, 8), path)
    x = torch.randn(5, 2, 8, 8)
    torch.testing.assert_close(answers(path, x), model(x), rtol=1e-4, atol=1e-5)
    found = operators(path)
    assert set(found) <= {
        "Conv",
        "Relu",
        "MaxPool",
        "Gemm",
        "Reshape",
        "Flatten",
        "Gather",
        "Slice",
        "BatchNormalization",
    }
    assert found.count("Conv") == 2 and found.count("Gemm") == 2 and "2 Conv" in said
    # Unfolded, each of the four layers reads a part of what comes; folded, most read all of it.
    parts = found.count("Gather") + found.count("Slice")
    assert parts == 4 if not folded else parts < 4


def test_plain_twins_compute_the_same_and_leave_the_network_alone() -> None:
    model, _ = convert(network(), Eliminated(keep=0.5, by="tap"), lambda name, _: name == "4")
    model, _ = convert(model, WeightOnly("e3m4"))
    before = copy.deepcopy(model)
    twin = plain(model.train())
    kinds = {type(module) for module in twin.modules()}
    assert not kinds & {WeightOnlyLinear, WeightOnlyConv} and not any(isinstance(m, Indexed) for m in twin.modules())
    assert not twin.training and model.training
    x = torch.randn(3, 2, 8, 8)
    torch.testing.assert_close(twin(x), model.eval()(x), rtol=1e-5, atol=1e-6)
    assert [type(module) for module in model.modules()] == [type(module) for module in before.modules()]
    assert type(plain(WeightOnlyLinear.from_dense(nn.Linear(3, 2), WeightOnly()))) is nn.Linear


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(onnx_file, "LIMIT", -1.0)
    with pytest.raises(CheckError, match="do not use it"):
        export(nn.Sequential(nn.Linear(3, 2)), torch.randn(1, 3), tmp_path / "wrong.onnx")


class Variadic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, *inputs: Tensor) -> Tensor:
        y: Tensor = self.layer(inputs[0])
        return y


def test_networks_with_any_number_of_inputs_are_given_one(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model = Variadic().eval()
    export(model, torch.randn(1, 3), tmp_path / "new" / "one.onnx")
    x = torch.randn(4, 3)
    torch.testing.assert_close(answers(tmp_path / "new" / "one.onnx", x), model(x))


class OfTwo(nn.Module):
    """The number of rows becomes a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(int(x.shape[0]) * 3).reshape(-1, 3) + torch.ones(int(x.shape[0]), 3)


def test_a_file_for_one_batch_alone_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(LaminaError, match=r"batch of 3|cannot export"):
        export(OfTwo(), torch.randn(1, 3), tmp_path / "two.onnx")


class Untraceable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x


def test_what_torch_cannot_export_is_said_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(LaminaError, match=r"^[^\n]*torch cannot export this network[^\n]*$"):
        export(Untraceable(), torch.randn(1, 3), tmp_path / "none.onnx")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(MissingError, match="ONNX files need onnxscript: install lamina with its onnx extra"):
        onnx_file.require()
