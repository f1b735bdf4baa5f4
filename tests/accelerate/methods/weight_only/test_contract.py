"""The laws of a method, run for layers with stored weights."""

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.methods.weight_only import WeightOnly, functional, kernels, ops, reference
from lamina.accelerate.methods.weight_only import convert as cell
from lamina.accelerate.methods.weight_only.config import FORMATS, Format, Impl
from lamina.accelerate.methods.weight_only.formats import Packed, pack, unpack
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.errors import UnsupportedError
from lamina.spec import Cost
from lamina.testing.method_contract import Layer, MethodContract, Product

pytestmark = pytest.mark.usefixtures("where_kernels_run")

MAPS = [(1, 1, 1), (5, 37, 7), (2, 33, 18), (17, 20, 300)]  # rows, outputs, inputs: odd, single, with a split sum


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def product(packed: Packed, impl: Impl, x: Tensor, b: Tensor) -> Tensor:
    """With an input whose rows are columns of another."""
    return functional.linear(x.mT.contiguous().mT, packed, b, impl=impl)


class WeightOnlyProvider:
    config = WeightOnly("e3m4", impl="reference")
    cell: ModuleType = cell
    impls = ("reference", "kernel")
    rounds_gradients: Mapping[str, str] = {}

    def roundtrip(self, layer: Any) -> Any:
        return type(layer).from_dense(layer.to_dense(), self.config)

    def layers(self) -> Mapping[str, Layer]:
        return {
            "linear": Layer(lambda: nn.Linear(6, 5), (3, 6)),
            "no bias": Layer(lambda: nn.Linear(6, 5, bias=False), (2, 3, 6)),
            "conv": Layer(lambda: nn.Conv2d(4, 6, 3, 2, padding="valid", groups=2), (2, 4, 7, 5)),
            "conv1d": Layer(lambda: nn.Conv1d(4, 6, 3, padding=1, bias=False), (2, 4, 7)),
        }

    def refused(self) -> Mapping[str, nn.Module]:
        return {"reflecting": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "norm": nn.BatchNorm2d(8)}

    def references(self) -> Iterable[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
        for format in FORMATS:
            packed = pack(torch.randn(4, 3), format, "row")
            yield format, lambda x, b, p=packed: reference.linear(x, p, b), (numbers(2, 3), numbers(4))

    def products(self) -> Iterable[Product]:
        for rows, outputs, inputs in MAPS:
            small = (rows, outputs, inputs) == (5, 37, 7)
            for format in FORMATS if small else ("e4m3", "deft16q"):
                packed = pack(torch.randn(outputs, inputs), format, "row")
                for dtype in ops.dtypes(format):
                    ours, plain = (partial(product, packed, impl) for impl in ("kernel", "reference"))
                    # bfloat16 rounds the weights of deft16q, which float32 holds.
                    operands = numbers(rows, inputs), numbers(outputs)
                    yield Product(f"{format} {rows}x{inputs}>{outputs}", ours, plain, operands, dtype)

    def operators(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        x, b = torch.randn(3, 4, requires_grad=True), torch.randn(5, requires_grad=True)
        for format, bias in (("e4m3", b), ("deft16q", None), ("half", b)):
            packed = pack(torch.randn(5, 4), format, "row")  # type: ignore[arg-type]
            yield ops.linear, (x, packed.codes, packed.scale, bias, format, 4)

    def costs(self) -> Iterable[tuple[Cost, Cost]]:
        # 2 rows, 3 outputs, 5 inputs: 15 codes, 10 numbers in, 3 scales.
        yield kernels.linear_cost(2, 3, 5, 2, 8), Cost(60, 15 + 20 + 12, 12)
        yield kernels.linear_cost(2, 3, 5, 4, 16, split_k=2), Cost(60, 30 + 40 + 12 + 48, 24 + 48)

    def faults(self) -> Mapping[str, tuple[Callable[[], object], tuple[str, ...]]]:
        packed = pack(torch.randn(6, 8), "e4m3")
        pairs = pack(torch.randn(6, 8), "deft16q")
        x = torch.zeros(2, 8)

        def apply(x: Tensor, packed: Packed = packed, **more: Any) -> Callable[[], object]:
            return lambda: functional.linear(x, packed, **more)

        return {
            "width": (apply(torch.zeros(2, 7)), ("(..., 8)", "(2, 7)")),
            "bias": (apply(x, bias=torch.zeros(5)), ("expected (6,)", "got (5,)")),
            "integers": (apply(torch.zeros(2, 8, dtype=torch.int64)), ("floating point", "torch.int64")),
            "place": (apply(x.to("meta")), ("meta",)),
            "type": (apply(x.double(), impl="kernel"), ("float32, bfloat16", "float64")),
            "pairs": (apply(x.bfloat16(), packed=pairs, impl="kernel"), ("one of float32", "bfloat16")),
            "impl": (apply(x, impl="kernels"), ("kernels", "did you mean 'kernel'")),
            "layer": (lambda: cell.replace(nn.ReLU(), WeightOnly()), ("ReLU",)),
        }


class TestWeightOnly(MethodContract):
    provider = WeightOnlyProvider()


def test_codes_keep_their_type_when_the_model_changes_its_own() -> None:
    model, _ = convert(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Conv2d(1, 1, 1)), WeightOnly("half", impl="reference")
    )
    layer = copy.deepcopy(model[0])
    assert isinstance(layer, WeightOnlyLinear)
    codes = layer.codes.clone()
    for dtype in (torch.float64, torch.bfloat16):
        layer.to(dtype)
        assert layer.codes.dtype == torch.float16 and torch.equal(layer.codes, codes)
        assert layer.scale.dtype == torch.float32 and layer.weight.dtype == dtype
        assert layer(torch.zeros(2, 8, dtype=dtype)).dtype == dtype


def test_a_saved_model_is_loaded_again_and_smaller() -> None:
    dense = nn.Linear(64, 32)
    model, record = convert(nn.Sequential(dense), WeightOnly("e4m3"))
    state = model.state_dict()
    assert sum(t.numel() * t.itemsize for t in state.values()) < 32 * 64 + 300 and record.replaced
    fresh, _ = convert(nn.Sequential(nn.Linear(64, 32)), WeightOnly("e4m3"))
    fresh.load_state_dict(state, strict=True)
    x = torch.randn(3, 64)
    assert torch.equal(fresh(x), model(x))


@pytest.mark.parametrize("format", FORMATS)
def test_a_saved_model_is_loaded_into_one_of_the_meta_device(format: Format) -> None:
    config = WeightOnly(format, impl="reference")
    for make, x in (
        (lambda: WeightOnlyLinear.from_dense(nn.Linear(7, 5), config), torch.randn(3, 7)),
        (lambda: WeightOnlyConv.from_dense(nn.Conv2d(3, 4, 3), config), torch.randn(2, 3, 5, 4)),
    ):
        saved = make()
        with torch.device("meta"):
            built = make()
        assert all(tensor.is_meta for tensor in built.state_dict().values())
        for empty in (built, make().to("meta")):
            loaded = empty.to_empty(device=x.device)
            loaded.load_state_dict(saved.state_dict(), strict=True)
            assert torch.equal(loaded(x), saved(x))


def test_loaded_codes_are_those_of_the_file_when_the_type_was_changed_on_the_meta_device() -> None:
    config = WeightOnly("half", impl="reference")
    saved = WeightOnlyLinear.from_dense(nn.Linear(7, 5), config).bfloat16()
    loaded = WeightOnlyLinear.from_dense(nn.Linear(7, 5, device="meta"), config).bfloat16().to_empty(device="cpu")
    loaded.load_state_dict({key: value.cpu() for key, value in saved.state_dict().items()})
    x = torch.randn(3, 7, dtype=torch.bfloat16, device="cpu")
    assert loaded.codes.dtype == torch.float16 and torch.equal(loaded(x), saved.cpu()(x))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_that_is_not_zeros_is_refused_without_convert_too(mode: str) -> None:
    for dense in (nn.Conv1d(2, 2, 3, padding=1, padding_mode=mode), nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode)):
        with pytest.raises(UnsupportedError, match=f"padding_mode='{mode}'.*pad in front of") as error:
            WeightOnlyConv.from_dense(dense, WeightOnly())
        assert str(error.value) == cell.refusal(dense)


@pytest.mark.parametrize("format", FORMATS)
def test_the_kernel_reads_each_code_as_the_definition_does(format: Format) -> None:
    """A unit matrix as input shows the weights themselves."""
    weight = torch.cat([torch.randn(16, 24), torch.randn(16, 24) * 1e-3])
    packed = pack(weight, format, "row")
    dtype = ops.dtypes(format)[0]
    read = functional.linear(torch.eye(24, dtype=dtype), packed, impl="kernel")
    torch.testing.assert_close(read.mT, unpack(packed).to(dtype), rtol=1e-6, atol=0)


def test_nothing_comes_of_nothing() -> None:
    packed = pack(torch.randn(5, 4), "e4m3")
    assert functional.linear(torch.zeros(0, 4), packed, impl="kernel").shape == (0, 5)
