"""Inputs by name, by keyword and from a function reach the network, whose parts keep their names."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.build import from_external, trace
from lamina.build.inputs import Made
from lamina.build.models.external import External
from lamina.errors import UsageError
from lamina.spec import Input, ScalarInput


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        return self.head(x if mask is None else x * mask[..., None])


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 2, 1)

    def forward(self, images: list[Tensor], targets: list[dict[str, Any]] | None = None) -> dict[str, Tensor]:
        assert targets is not None and all(target["name"] == "box" for target in targets)
        return {"loss": sum(self.body(x).mean() * t["scale"] for x, t in zip(images, targets, strict=True))}


def listed(batch: int) -> tuple[Any, ...]:
    images = [torch.rand(3, 4 + sample, 5) for sample in range(batch)]
    return images, [{"name": "box", "scale": torch.tensor(2.0)} for _ in range(batch)]


def test_inputs_are_passed_by_name_and_indices_are_in_range() -> None:
    given = (
        Input(name="tokens", shape=(5,), content="indices"),
        Input(name="mask", shape=(5,), content="indices", vocabulary=2),
    )
    target = from_external("keywords", lambda: External(Keywords()), given)
    assert [one.vocabulary for one in target.inputs] == [7, 2]
    module = target.make(None)
    (tokens, mask), _, _ = target.example(3, None, "fp32", torch.device("cpu"), "nchw", 0)
    assert int(tokens.max()) < 7 and set(mask.unique().tolist()) <= {0, 1}
    torch.testing.assert_close(module(tokens, mask), Keywords.forward(module, tokens, mask=mask))
    assert [name for name, _ in copy.deepcopy(module).named_parameters()] == [*Keywords().state_dict()]
    assert {layer.name for layer in target.resolve(3)} >= {"embed", "head"}
    with pytest.raises(UsageError, match="fills one input, keywords has 2: tokens, mask; --data synthetic draws"):
        target.train_test("fashion-mnist")


def test_indices_of_any_shape_are_drawn() -> None:
    edges = Input(name="tokens", shape=(2, 5), content="indices")
    target = from_external("edges", lambda: External(Keywords()), (edges,))
    (drawn,), labels, _ = target.example(3, None, "fp32", torch.device("cpu"), "nchw", 0)
    assert (drawn.dtype, drawn.shape, labels.shape) == (torch.int64, (3, 2, 5), (3,)) and int(drawn.max()) < 7


def test_a_function_may_make_one_value_per_sample() -> None:
    made = Made(lambda batch: (torch.zeros(batch, 8), torch.arange(batch)))
    target = from_external("timed", lambda: External(nn.Linear(8, 8)), made)
    assert target.inputs == (Input(shape=(8,)), ScalarInput())


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_function_makes_nested_inputs(batch: int) -> None:
    target = from_external("listed", lambda: External(Listed()), Made(listed))
    module = target.make(None)
    tensors, _, _ = target.example(batch, None, "fp32", torch.device("cpu"), "nchw", 0)
    assert len(tensors) == 2 * batch
    found = trace(module, *tensors)
    assert [call.name for call in found.calls].count("body") == 1 and found.outputs
    assert len(target.empty(batch, "fp32")) == 2 * batch
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.body.weight.zero_()
    assert not torch.equal(copied(*tensors)["loss"], module(*tensors)["loss"])


def test_a_function_that_fails_is_named() -> None:
    def fails(batch: int) -> None:
        raise ZeroDivisionError("no inputs")

    with pytest.raises(UsageError, match=r"--input-fn: for a batch of 1 it raised ZeroDivisionError: no inputs"):
        from_external("listed", lambda: External(Listed()), Made(fails))


def test_passes_do_not_call_the_function_again() -> None:
    sizes = []

    def make(batch: int) -> Any:
        sizes.append(batch)
        return {"tokens": torch.zeros(batch, 5, dtype=torch.int64)}

    module = Made(make).adapt(Keywords())
    for _ in range(3):
        module(torch.ones(4, 5, dtype=torch.int64))
    assert sizes == [1]


@pytest.mark.parametrize("batch", [1, 3])
def test_operations_of_the_function_are_no_layers(batch: int) -> None:
    target = from_external("listed", lambda: External(Listed()), Made(listed))
    module = target.make(None)
    found = trace(module, *target.example(batch, None, "fp32", torch.device("cpu"), "nchw", 0)[0])
    assert not {call.name for call in found.calls} & {"rand", "tensor"}
    assert {layer.name for layer in target.resolve(batch)} == {call.name for call in found.calls}


class Spectral(nn.Module):
    """Complex weights on a complex input; ``kinds`` is an integer without an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, dtype=torch.complex64))
        self.head = nn.Linear(6, 2)

    def forward(self, z: Tensor, kinds: Tensor | None = None) -> Tensor:
        y = self.head((z @ self.weight).abs())
        return y if kinds is None else y + kinds.to(y.dtype)


def test_complex_inputs_and_ranges_reach_the_network() -> None:
    given = (
        Input(name="z", shape=(4,), dtype="complex64"),
        Input(name="kinds", shape=(2,), content="indices", low=5, vocabulary=8, dtype="int32"),
    )
    target = from_external("spectral", lambda: External(Spectral()), given)
    (z, kinds), labels, _ = target.example(64, None, "bf16", torch.device("cpu"), "nchw", 0)
    assert (z.dtype, z.shape, kinds.dtype, labels.shape) == (torch.complex64, (64, 4), torch.int32, (64,))
    assert bool(z.imag.any()) and set(kinds.unique().tolist()) == {5, 6, 7}
    assert [one.dtype for one in target.empty(2, "bf16")] == [torch.complex64, torch.int32]
    assert "head" in {layer.name for layer in target.resolve(2)}
    with pytest.raises(UsageError, match="no dataset has complex values, as its input 'z' needs"):
        from_external("spectral", lambda: External(Spectral()), given[:1]).train_test("fashion-mnist")


def test_indices_fit_in_their_type() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1000, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.embed(tokens.int())

    tokens = Input(name="tokens", shape=(5,), content="indices", dtype="int8")
    (one,) = from_external("large", lambda: External(Large()), (tokens,)).inputs
    assert one.vocabulary == 128


def test_names_that_a_network_does_not_have_are_refused() -> None:
    def found(*names: str) -> None:
        from_external("net", lambda: External(Keywords()), [Input(name=name, shape=(3,)) for name in names])

    found("tokens", "mask")
    with pytest.raises(UsageError, match="Keywords has no input 'token': did you mean 'tokens'"):
        found("token")


def test_a_network_of_any_arguments_takes_inputs_by_position() -> None:
    class Summed(nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return torch.stack(tensors).sum(0)

    both = [Input(name="a", shape=(3,)), Input(name="b", shape=(3,))]
    network = from_external("net", lambda: External(Summed()), both).make(None)
    assert torch.equal(network(torch.ones(2, 3), torch.ones(2, 3)), torch.full((2, 3), 2.0))
