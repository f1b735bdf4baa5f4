"""The laws of an acceleration method, written once.

A method's test file subclasses `MethodContract` under a name that starts with ``Test`` and supplies `provider`; every
law below then runs for it. The law of kernels asks for the fixture ``poisoned_empty``, which fills fresh memory with
NaN.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lamina.accelerate import convert
from lamina.errors import LaminaError, UnsupportedError
from lamina.run import precision_mode
from lamina.spec import Cost
from lamina.testing.tolerance import assert_as_accurate

SIZES = (
    *("in_features", "out_features", "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"),
    *("groups", "padding_mode"),
)
"""Attributes of layers that networks read, such as a stride to compute their own padding from."""

CLOSE = {
    torch.float32: (1e-4, 1e-5),  # sums of up to a few hundred products, in another order
    torch.float64: (1e-9, 1e-9),
}
"""Relative and absolute tolerance of a transform's result to autograd's."""


@dataclass(frozen=True)
class Layer:
    """A dense layer that the method takes: a factory of it, the shape of its input, whether to compile it as well."""

    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    compiled: bool = True


@dataclass(frozen=True)
class Product:
    """A computation by the method, by plain torch, and its inputs in float64; ``dtype`` is what both compute in.

    ``worst`` and ``mean`` are the factors of the tolerance rule; where they are not 2, ``reason`` says why. ``plain``
    also gives the exact result, in float64. Either may take views of its inputs, to compute on hostile strides.
    """

    name: str
    ours: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    dtype: torch.dtype
    worst: float = 2.0
    mean: float = 2.0
    reason: str = ""

    def __post_init__(self) -> None:
        if ((self.worst, self.mean) != (2.0, 2.0)) != bool(self.reason):
            raise ValueError(f"{self.name}: expected a reason beside factors other than 2, and none beside 2")


class Provider(Protocol):
    """What a method supplies."""

    @property
    def cell(self) -> Any:
        """The module with ``refusal`` and ``replace``."""

    @property
    def config(self) -> Any:
        """A configuration that fits `layers`."""

    @property
    def impls(self) -> tuple[str, ...]:
        """Every value of the configuration's ``impl`` but ``auto``. A layer may refuse some, no impl all layers."""

    @property
    def rounds_gradients(self) -> Mapping[str, str]:
        """Implementations that round the gradient of the output below its dtype, with the reason."""

    def layers(self) -> Mapping[str, Layer]:
        """Dense layers of every type that the method takes."""

    def roundtrip(self, layer: Any) -> Any:
        """The layer made again from its dense form: ``from_dense(to_dense())`` with the layer's own options."""

    def refused(self) -> Mapping[str, nn.Module]:
        """Layers that it refuses, in a model together with one it takes."""

    def references(self) -> Iterable[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
        """The definition as functions of small float64 tensors."""

    def products(self) -> Iterable[Product]:
        """The kernels over hostile shapes."""

    def operators(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """Custom operators, each with arguments that need gradients."""

    def costs(self) -> Iterable[tuple[Cost, Cost]]:
        """The declared cost of a small launch, and a count by hand."""

    def faults(self) -> Mapping[str, tuple[Callable[[], object], tuple[str, ...]]]:
        """Bad calls, and words that the error must have: what was expected, what was got."""


class MethodContract:
    """The laws. ``provider`` is set by the subclass; layers and inputs of every law are brought to ``device``."""

    provider: Provider
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def test_reference_is_differentiable_twice(self) -> None:
        for name, function, inputs in self.provider.references():
            leaves = tuple(self._here(tensor).double().requires_grad_() for tensor in inputs)
            assert torch.autograd.gradcheck(function, leaves), name
            assert torch.autograd.gradgradcheck(function, leaves), name

    def test_kernels_are_as_accurate_as_plain_torch(self, poisoned_empty: None) -> None:
        with precision_mode("fp32", autotune=False):
            self._hold_products()

    def _hold_products(self) -> None:
        for product in self.provider.products():
            inputs = tuple(map(self._here, product.inputs))
            exact = _with_gradients(product.plain, inputs, torch.float64, product.dtype)
            plain = _with_gradients(product.plain, inputs, product.dtype, product.dtype)
            ours = _with_gradients(product.ours, inputs, product.dtype, product.dtype)
            names = ["result", *(f"gradient {index}" for index in range(len(product.inputs)))]
            for name, a, b, c in zip(names, ours, plain, exact, strict=True):
                what = f"{product.name} {product.dtype} {name}"
                assert_as_accurate(a, b, c, worst=product.worst, mean=product.mean, what=what)

    def test_operators_pass_opcheck(self) -> None:
        for operator, arguments in self.provider.operators():
            here = tuple(self._here(one) if isinstance(one, Tensor) else one for one in arguments)
            results = torch.library.opcheck(operator, here)
            assert set(results.values()) == {"SUCCESS"}, (operator, results)

    def test_from_dense_undoes_to_dense(self) -> None:
        for name, layer in self._converted():
            again = self.provider.roundtrip(layer)
            assert type(again) is type(layer), name
            assert [*again.state_dict()] == [*layer.state_dict()], name
            ours, theirs = again.to_dense().state_dict(), layer.to_dense().state_dict()
            assert all(torch.equal(ours[key], value) for key, value in theirs.items()), name

    def test_every_implementation_runs_and_is_as_accurate_as_plain_torch(self, poisoned_empty: None) -> None:
        for impl in self.provider.impls:
            with precision_mode("fp32", autotune=False):
                self._hold_implementation(impl)

    def _hold_implementation(self, impl: str) -> None:
        ran = []
        for name in self.provider.layers():
            torch.manual_seed(1)  # the same values for every implementation, whatever drew numbers before
            try:
                layer: Any = self.provider.cell.replace(self._dense(name), replace(self.provider.config, impl=impl))
                x = self._representable(self._input(name))
                ours = _output_and_gradient(layer, x)
            except UnsupportedError:
                continue
            executed, reason = layer.executed("forward")
            if executed != impl and not executed.endswith(f"impl={impl}]"):  # a layer that has only one says so
                assert reason not in ("", "requested"), (name, executed)
                continue
            assert reason.split(",")[0] == "requested", (name, executed, reason)
            dense = layer.to_dense()
            plain, exact = _output_and_gradient(dense, x), _output_and_gradient(dense.double(), x.double())
            held = ("output",) if impl in self.provider.rounds_gradients else ("output", "gradient")
            for what, *three in zip(held, ours, plain, exact, strict=False):
                assert_as_accurate(*three, what=f"{impl} {name} {what}")
            ran.append(name)
        assert ran, f"impl={impl!r} ran for no layer"

    def test_to_dense_computes_the_same(self) -> None:
        for name, layer in self._converted():
            x = self._input(name).double()
            ours, dense = _output(layer.double(), x), _output(layer.to_dense().double(), x)
            torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-9, msg=partial("{}: {}".format, name))

    def test_to_dense_is_as_frozen_as_the_layer(self) -> None:
        for name, layer in self._converted():
            if not any("weight" in parameter for parameter, _ in layer.named_parameters()):
                continue  # its weights are buffers of another type, which have no gradients
            dense = layer.requires_grad_(False).eval().to_dense()
            assert not any(parameter.requires_grad for parameter in dense.parameters()), name
            assert not any(module.training for module in dense.modules()), name

    def test_converted_layers_keep_shapes_and_states(self) -> None:
        for name, layer in self._converted():
            x = self._input(name)
            expected = _output(layer, x)
            assert expected.shape == _output(self._dense(name), x).shape, name
            fresh = self.provider.cell.replace(self._dense(name), self.provider.config)
            file = io.BytesIO()
            torch.save(layer.state_dict(), file)
            file.seek(0)
            fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
            for twin in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
                assert torch.equal(_output(twin, x), expected), name

    def test_converted_layers_name_their_input_as_pytorch_does(self) -> None:
        for name, layer in self._converted():
            assert next(iter(inspect.signature(layer.forward).parameters)) == "input", name

    def test_converted_layers_have_the_sizes_that_networks_read(self) -> None:
        for name, layer in self._converted():
            dense = self._dense(name)
            sizes = [size for size in SIZES if hasattr(dense, size)]
            assert {size: getattr(layer, size) for size in sizes} == {size: getattr(dense, size) for size in sizes}

    def test_compiled_layers_give_the_same(self) -> None:
        for name, layer in self._converted():
            if not self.provider.layers()[name].compiled:
                continue
            x = self._input(name)
            torch.compiler.reset()
            compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
            results = []
            for function in (layer, compiled):
                leaf = x.clone().requires_grad_()
                y = _output(function, leaf)
                results.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])))
            for ours, theirs in zip(*results, strict=True):
                torch.testing.assert_close(ours, theirs, msg=partial("{}: {}".format, name))

    def test_layers_take_transforms_of_functions(self) -> None:
        with precision_mode("fp32", autotune=False):  # TF32 convolutions would differ from kernels by 1e-3
            self._hold_transforms()

    def _hold_transforms(self) -> None:
        for dtype in (torch.float32, torch.float64):  # kernels, where they run, and what both have to be
            for name, layer in self._converted():
                if isinstance(layer, nn.LSTM):  # the library's own pass, which lacks rules itself
                    continue
                layer, x = layer.to(dtype), self._input(name).to(dtype).requires_grad_()
                leaves = {"": x, **dict(layer.named_parameters())}
                values = {key: value.detach() for key, value in leaves.items()}

                def loss(values: dict[str, Tensor], layer: Any = layer) -> Tensor:
                    x, parameters = values[""], {key: value for key, value in values.items() if key}
                    return _output(partial(functional_call, layer, parameters), x).square().sum()

                rtol, atol = CLOSE[dtype]

                def near(ours: Tensor, theirs: Tensor, what: str, rtol: float = rtol, atol: float = atol) -> None:
                    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, msg=partial("{}: {}".format, what))

                expected = torch.autograd.grad(loss(leaves), [*leaves.values()])
                for (key, ours), theirs in zip(torch.func.grad(loss)(values).items(), expected, strict=True):
                    scale = theirs.abs().max()  # a gradient's elements may cancel
                    near(ours / scale, theirs / scale, f"{name}: gradient of {key or 'x'}")
                # Uphill, at random, so that little cancels.
                along = [one * (1 + 0.5 * torch.randn_like(one)) for one in expected]
                slope = torch.func.jvp(loss, (values,), (dict(zip(values, along, strict=True)),))[1]
                by_hand = torch.stack([(one * other).sum() for one, other in zip(expected, along, strict=True)]).sum()
                near(slope / by_hand, torch.ones_like(slope), f"{name}: slope")
                many = torch.func.vmap(partial(_output, layer))(torch.stack([x, 2 * x]))
                near(many[1], _output(layer, 2 * x), f"{name}: one of several")

    def test_every_skipped_layer_says_why(self) -> None:
        refused = self.provider.refused()
        first = next(iter(self.provider.layers().values()))
        model, record = convert(nn.ModuleDict({**refused, "taken": first.make()}), self.provider.config)
        skipped = {layer.layer: layer.refusal for layer in record.skipped}
        assert set(skipped) == set(refused)
        for name, module in refused.items():
            assert model.get_submodule(name) is module
            assert skipped[name] == self.provider.cell.refusal(module), name
        assert [layer.layer for layer in record.replaced] == ["taken"]

    def test_bad_input_is_told_what_was_expected(self) -> None:
        for name, (call, words) in self.provider.faults().items():
            said = _complaint(call)
            assert said is not None, f"{name}: expected an error of lamina's, got none"
            missing = [word for word in words if word not in said]
            assert not missing, f"{name}: expected {missing} in {said!r}"

    def test_declared_costs_equal_a_count_by_hand(self) -> None:
        for declared, counted in self.provider.costs():
            assert declared == counted

    def _converted(self) -> Iterable[tuple[str, Any]]:
        for name in self.provider.layers():
            yield name, self.provider.cell.replace(self._dense(name), self.provider.config)

    def _dense(self, name: str) -> nn.Module:
        return self.provider.layers()[name].make().to(self.device)

    def _input(self, name: str) -> Tensor:
        return torch.randn(self.provider.layers()[name].input_shape, device=self.device)

    def _representable(self, x: Tensor) -> Tensor:
        """Values that float16 holds: some implementations round their operands to it."""
        return x.half().to(x.dtype)

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.device).requires_grad_(tensor.requires_grad)


def _complaint(call: Callable[[], object]) -> str | None:
    try:
        call()
    except LaminaError as error:
        return str(error)
    return None


def _output(layer: Callable[..., Any], x: Tensor) -> Tensor:
    """A layer's result; recurrent ones return their states too."""
    y = layer(x)
    result: Tensor = y[0] if isinstance(y, tuple) else y
    return result


def _output_and_gradient(layer: Callable[..., Any], x: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the gradient of the input for an upstream gradient of mixed signs."""
    leaf = x.detach().clone().requires_grad_()
    y = _output(layer, leaf)
    upstream = torch.linspace(-9, 9, y.numel(), device=y.device).sin().view(y.shape).to(y.dtype)
    return y.detach(), torch.autograd.grad(y, leaf, upstream)[0]


def _with_gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], dtype: torch.dtype, stored: torch.dtype
) -> tuple[Tensor, ...]:
    """The result and the gradient of every input; inputs and upstream gradient hold what ``stored`` can hold."""
    leaves = [tensor.detach().to(stored).to(dtype).requires_grad_() for tensor in inputs]
    y = function(*leaves)
    upstream = torch.linspace(-9, 9, y.numel(), device=y.device).sin().view(y.shape).to(stored).to(dtype)
    return y.detach(), *torch.autograd.grad(y, leaves, upstream)
