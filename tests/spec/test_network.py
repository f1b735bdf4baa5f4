"""Networks: wiring, shapes, and every fault at once."""

from typing import Any

import pytest

from lamina.errors import SpecError
from lamina.spec import Input, Layer, Network, Phase, ScalarInput
from lamina.spec.layers import Activation, Add, Convolution, Flatten, Linear, Pooling


def network(*layers: Layer, **more: Any) -> Network:
    return Network(name="net", inputs=(Input(shape=(3, 8, 8)),), layers=layers, **more)


def conv(name: str, reads: str, **settings: Any) -> Convolution:
    return Convolution(name=name, inputs=(reads,), **{"out_channels": 4, "kernel": 3, "padding": 1} | settings)


RESIDUAL = network(
    conv("conv1", "input"),
    Activation(name="relu1", inputs=("conv1",)),
    conv("conv2", "relu1"),
    Add(name="sum", inputs=("conv2", "conv1")),
    Flatten(name="flat", inputs=("sum",)),
    Linear(name="fc", inputs=("flat",), out_features=10),
    batch=2,
)


def faults(net: Network) -> list[str]:
    with pytest.raises(SpecError) as caught:
        net.resolve()
    return [str(fault) for fault in caught.value.faults]


def test_shapes_flow_through() -> None:
    shapes = {layer.name: (layer.inputs, layer.output) for layer in RESIDUAL.resolve()}
    assert shapes["conv1"] == (((2, 3, 8, 8),), (2, 4, 8, 8))
    assert shapes["sum"] == (((2, 4, 8, 8), (2, 4, 8, 8)), (2, 4, 8, 8))
    assert shapes["fc"] == (((2, 256),), (2, 10))


def test_another_batch_size() -> None:
    assert [layer.output[0] for layer in RESIDUAL.resolve(5)] == [5] * 6


def test_resolved_layers_answer_for_their_place() -> None:
    conv2, fc = (RESIDUAL.resolve(1)[i] for i in (2, 5))
    assert (conv2.parameters, fc.parameters) == (4 * 4 * 9, 2560)
    assert conv2.cost(Phase.FORWARD).flops == 2 * 64 * 144
    assert fc.phases == tuple(Phase)


def test_outputs_are_the_layers_nobody_reads() -> None:
    assert RESIDUAL.outputs() == ("fc",)
    assert network(conv("a", "input"), conv("b", "input")).outputs() == ("a", "b")


def test_every_wiring_fault_at_once() -> None:
    net = network(
        conv("a", "inptu"),
        conv("a", "input"),
        Add(name="sum", inputs=("a",)),
        conv("early", "late"),
        conv("late", "input"),
        conv("x", "y"),
        conv("y", "x"),
        conv("me", "me"),
        Activation(name="input", inputs=("a", "late")),
        lines={"a": 3, "sum": 9},
    )
    assert faults(net) == [
        "line 3: layer 'a' (convolution): this name is already taken; give each layer a name of its own",
        "layer 'input' (activation): this name is already taken; give each layer a name of its own",
        "line 3: layer 'a' (convolution): input 'inptu' does not exist: did you mean 'input'?",
        "line 9: layer 'sum' (add): expected at least 2 inputs, got 1",
        "layer 'early' (convolution): input 'late' comes later in the file; a layer reads earlier ones",
        "layer 'x' (convolution): is part of a cycle: x -> y -> x",
        "layer 'me' (convolution): is part of a cycle: me -> me",
        "layer 'input' (activation): expected 1 inputs, got 2",
    ]


def test_every_shape_fault_at_once_without_those_that_follow() -> None:
    net = network(
        conv("large", "input", kernel=11),
        Pooling(name="after", inputs=("large",), kernel=2, stride=2),
        conv("groups", "input", groups=2),
        conv("good", "input"),
        Add(name="sum", inputs=("good", "input")),
    )
    found = faults(net)
    assert [fault.split("'")[1] for fault in found] == ["large", "groups", "sum"]
    assert "got 2x3x8x8" not in found[0]
    assert "expected inputs of one shape, got 1x4x8x8 and 1x3x8x8" in found[2]


def test_faults_name_the_network() -> None:
    with pytest.raises(SpecError, match=r"^net: layer 'a'"):
        network(conv("a", "b")).resolve()


def test_tokens_and_pictures_are_inputs() -> None:
    with pytest.raises(SpecError, match="at least 1 item"):
        Input(shape=())
    assert Input(shape=(5,), content="indices", vocabulary=7).vocabulary == 7


def test_one_value_per_sample_is_an_input_of_its_own() -> None:
    assert ScalarInput(name="t").shape == ()
    with pytest.raises(SpecError, match="at most 0 items"):
        ScalarInput(name="t", shape=(1,))
