"""lamina's own workload files."""

from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError, UsageError
from lamina.spec import KINDS, Input, Layer, Method, Network, Phase, Workload, read_toml, write_toml
from lamina.spec.layers import Attention, Convolution, Embedding, Opaque, Pooling, Softmax

BLOCK = """\
# A residual block
batch = 4

[input]
shape = [16, 8, 8]

[[layer]]
type = "convolution"
name = "conv1"
out_channels = 16
kernel = 3
padding = 1

[[layer]]
type = "batch_norm"

[[layer]]
type = "add"
inputs = ["batch_norm1", "input"]

[[layer]]
type = "flatten"

[[layer]]
type = "linear"
out_features = 10
method = "circulant[block_size=2]"

[workload]
precision = "tf32"
phases = ["forward"]
batch = 8
"""


def faults(text: str, variables: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_toml(text, "file.toml", variables or {})
    assert caught.value.source == "file.toml"
    message = str(caught.value)
    assert "pydantic" not in message
    assert "https:" not in message
    return [str(fault) for fault in caught.value.faults]


def one(type_: str, *lines: str, shape: str = "[4, 8, 8]") -> str:
    """A file of one layer."""
    return "\n".join([f"input = {{shape = {shape}}}", "[[layer]]", f'type = "{type_}"', *lines])


def test_a_network_and_its_workload() -> None:
    net, workload = read_toml(BLOCK, "folder/block.toml")
    assert (net.name, net.batch, net.mode) == ("block", 4, "composed")
    assert net.inputs == (Input(shape=(16, 8, 8)),)
    assert [(each.name, each.inputs) for each in net.layers] == [
        ("conv1", ("input",)),
        ("batch_norm1", ("conv1",)),
        ("add1", ("batch_norm1", "input")),
        ("flatten1", ("add1",)),
        ("linear1", ("flatten1",)),
    ]
    assert net.layers[4].method == Method("circulant", None, (("block_size", 2),))
    assert net.lines == {"conv1": 7, "batch_norm1": 14, "add1": 17, "flatten1": 21, "linear1": 24}
    assert net.resolve()[-1].output == (4, 10)
    assert workload == Workload(precision=("tf32",), phases=(Phase.FORWARD,), batch=(8,))


def test_made_names_count_and_avoid_given_ones() -> None:
    text = one("bypass") + '\n[[layer]]\ntype = "bypass"\nname = "bypass2"\n[[layer]]\ntype = "bypass"\n'
    assert [each.name for each in read_toml(text, "a.toml")[0].layers] == ["bypass1", "bypass2", "bypass3"]


def test_several_inputs_and_one_name_without_brackets() -> None:
    text = """
    [[input]]
    name = "a"
    shape = [4]
    [[input]]
    name = "b"
    shape = [4]
    [[layer]]
    type = "linear"
    out_features = 4
    inputs = "b"
    [[layer]]
    type = "add"
    inputs = ["a", "linear1"]
    """
    net, _ = read_toml(text, "a.toml")
    assert [each.inputs for each in net.layers] == [("b",), ("a", "linear1")]


def test_standalone_layers_read_the_input_of_their_name_or_the_only_one() -> None:
    layers = '[[layer]]\ntype = "bypass"\n[[layer]]\ntype = "softmax"\n'
    shared = f'mode = "standalone"\ninput = {{shape = [4]}}\n{layers}'
    assert [each.inputs for each in read_toml(shared, "a.toml")[0].layers] == [("input",), ("input",)]
    own = 'input = [{name = "bypass1.input", shape = [4]}, {name = "softmax1.input", shape = [9]}]'
    net, _ = read_toml(f'mode = "standalone"\n{own}\n{layers}', "a.toml")
    assert [each.inputs for each in net.layers] == [("bypass1.input",), ("softmax1.input",)]


@pytest.mark.parametrize(
    ("context", "kernel", "dilation"), [([-2, -1, 0, 1, 2], 5, 1), ([-3, 0, 3], 3, 3), ([0], 1, 1), ([-8, -4], 2, 4)]
)
def test_a_time_delay_layer_is_a_dilated_convolution(context: list[int], kernel: int, dilation: int) -> None:
    net, _ = read_toml(one("tdnn", "out_channels = 6", f"context = {context}", shape="[4, 40]"), "a.toml")
    meant = Convolution(name="tdnn1", inputs=("input",), rank=1, out_channels=6, kernel=kernel, dilation=dilation)
    assert net.layers == (meant,)
    assert net.resolve()[0].output == (1, 6, 40 - (context[-1] - context[0]))


@pytest.mark.parametrize(
    ("setting", "value", "read"),
    [
        ("batch", "64", lambda net, _: net.batch == 64),
        ("name", "mine", lambda net, _: net.name == "mine"),
        ("mode", "standalone", lambda net, _: net.mode == "standalone"),
        ("input.shape", "[16,4,4]", lambda net, _: net.inputs[0].shape == (16, 4, 4)),
        ("conv1.out_channels", "16", lambda net, _: net.layers[0].out_channels == 16),
        ("conv1.kernel", "[3, 3]", lambda net, _: net.layers[0].kernel == (3, 3)),
        ("conv1.bias", "true", lambda net, _: net.layers[0].bias is True),
        ("linear1.method", "dense", lambda net, _: net.layers[4].method == Method()),
        ("add1.inputs", '["batch_norm1", "conv1"]', lambda net, _: net.layers[2].inputs == ("batch_norm1", "conv1")),
        ("workload.precision", "bf16", lambda _, work: work.precision == ("bf16",)),
        ("workload.precision", '["bf16", "fp16"]', lambda _, work: work.precision == ("bf16", "fp16")),
        ("workload.seed", "3", lambda _, work: work.seed == 3),
    ],
)
def test_settings_replace_the_file_s(setting: str, value: str, read: Any) -> None:
    text = BLOCK if setting != "mode" else one("bypass")
    assert read(*read_toml(text, "a.toml", {setting: value}))


def test_the_only_input_is_input_whatever_its_name() -> None:
    text = one("bypass", 'inputs = "x"').replace("{shape", '{name = "x", shape')
    assert read_toml(text, "a.toml", {"input.shape": "[9]"})[0].inputs[0].shape == (9,)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"btch": "1"}, "--set btch: there is no setting called 'btch': did you mean 'batch'?"),
        ({"conv2.bias": "1"}, "--set conv2.bias: there is no layer, input or table called 'conv2': "
         "did you mean 'conv1'?"),
        ({"conv1.bais": "true"}, "line 7: layer 'conv1': key 'bais' is unknown: did you mean 'bias'?"),
        ({"conv1.bias": "yes"}, "line 7: layer 'conv1': bias = 'yes': expected true or false"),
        ({"batch": "0"}, "line 2: batch = 0: expected at least 1"),
        ({"conv1.out_channels": "3\nbias = true"}, "line 10: layer 'conv1': out_channels = '3\\nbias = true': "
         "expected a whole number"),
        ({"input.shape": "[3, 8, 8]"}, "line 17: layer 'add1' (add): expected inputs of one shape, "
         "got 4x16x8x8 and 4x3x8x8"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant(variables: dict[str, str], expected: str) -> None:
    assert faults(BLOCK, variables) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = = 2", ["line 1: this is not TOML: invalid value"]),
        ("\n[input", ["line 2: this is not TOML: expected ']' at the end of a table declaration"]),
        ("a = " + "[" * 5000, ["brackets are nested too deeply"]),
        ("a = " + "1" * 5000, ["a number is too long"]),
        ("", ["there is no input: expected a table [input]", "there is no layer: expected a table [[layer]]"]),
        ("layer = 3\ninput = [1]", ["line 1: layer = 3: expected a table [[layer]]",
         "line 2: input = 1: expected a table [input]"]),
        (one("bypass") + "\n[worklod]\n", ["line 4: key 'worklod' is unknown: did you mean 'workload'?"]),
        ("workload = 3\n" + one("bypass"), ["line 1: workload: expected a table [workload]"]),
        ("batch = true\nmode = 'x'\n" + one("bypass"), ["line 1: batch = True: expected a whole number",
         "line 2: mode = 'x': expected one of: composed, standalone"]),
        (one("convolutoin"), ["line 3: layer 'convolutoin1': type 'convolutoin' is unknown: "
         "did you mean 'convolution'?"]),
        (one("opaque"), ["line 3: layer 'opaque1': type 'opaque' is unknown: expected one of: "]),
        ("input = {shape = [3]}\n[[layer]]\n", ["line 2: layer 'layer1': type is missing"]),
        (one("convolution", "kernel = 3"), ["line 2: layer 'convolution1': out_channels is missing"]),
        (one("convolution", "kernel = '3'", "out_channels = '3'"), [
         "line 4: layer 'convolution1': kernel = '3': expected a list",
         "line 5: layer 'convolution1': out_channels = '3': expected a whole number"]),
        (one("convolution", "kernel = [3]", "out_channels = 3"), ["line 2: layer 'convolution1': "
         "kernel has 1 values, expected 2 (or one for all axes)"]),
        (one("softmax", "mode = 'chanel'"), ["line 4: layer 'softmax1': mode = 'chanel': did you mean 'channel'?"]),
        (one("batch_norm", "eps = 0"), ["line 4: layer 'batch_norm1': eps = 0: expected more than 0"]),
        (one("linear", "out_features = 3", "method = 'circulent'"), ["line 5: layer 'linear1': "
         "implementation 'circulent' is unknown: did you mean 'circulant'?"]),
        (one("bypass", "name = ''"), ["line 4: layer '': name = '': expected a text that is not empty"]),
        (one("bypass", "name = 3"), ["line 4: layer 3: name = 3: expected a text"]),
        (one("bypass", "inputs = 3"), ["line 4: layer 'bypass1': inputs = 3: expected a list"]),
        (one("bypass", "inputs = 'inptu'"), ["line 2: layer 'bypass1' (bypass): "
         "input 'inptu' does not exist: did you mean 'input'?"]),
        (one("add", "inputs = ['input']"), ["line 2: layer 'add1' (add): expected at least 2 inputs, got 1"]),
        (one("bypass", shape="[0, 'x']"), ["line 1: input 'input': shape (item 1) = 0: expected at least 1",
         "line 1: input 'input': shape (item 2) = 'x': expected a whole number"]),
        (one("linear", "out_features = 3", shape="[]"), [
         "line 1: input 'input': shape = []: expected at least 1 items"]),
        ("input = [{shape = [1]}, {shape = [1]}]\n[[layer]]\ntype = 'bypass'\ninputs = 'input'\n",
         ["line 1: input 'input': this name is already taken"]),
        (one("tdnn", "out_channels = 3", "context = [0, 1, 3]", shape="[4, 9]"),
         ["line 5: layer 'tdnn1': expected context to rise by equal steps, got [0, 1, 3]"]),
        (one("tdnn", "out_channels = 3", "context = [0, 0]", shape="[4, 9]"),
         ["line 5: layer 'tdnn1': expected context to rise by equal steps, got [0, 0]"]),
        (one("tdnn", "out_channels = 3", shape="[4, 9]"),
         ["line 2: layer 'tdnn1': expected context = [-2, -1, 0, 1, 2] or other frames, got None"]),
        (one("tdnn", "out_channels = 3", "context = [0]", "kernel = 3", shape="[4, 9]"),
         ["line 5: layer 'tdnn1': a tdnn layer has a context instead of kernel"]),
        (one("bypass") + "\n[workload]\nprecision = ['fp31']\nbatch = [1, true]\nphases = 'forwrd'\nseed = -1\n"
         "precison = 3\nimpl = ['x']", [
            "line 5: [workload] precision (item 1) = 'fp31': did you mean 'fp32'?",
            "line 6: [workload] batch (item 2) = True: expected a whole number",
            "line 7: [workload] phases (item 1) = 'forwrd': expected forward, backward_data, backward_weight",
            "line 8: [workload] seed = -1: expected at least 0",
            "line 9: [workload] key 'precison' is unknown: did you mean 'precision'?",
            "line 10: [workload] implementation 'x' is unknown: expected one of: ",
        ]),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(text: str, expected: list[str]) -> None:
    found = faults(text)
    assert len(found) == len(expected)
    assert all(fault.startswith(start) for fault, start in zip(found, expected, strict=True)), found


def test_all_faults_are_reported_without_consequential_ones() -> None:
    text = BLOCK.replace("kernel = 3", "kernal = 3").replace('"batch_norm1", "input"', '"batch_norm", "input"')
    assert faults(text.replace('"tf32"', '"fp8"').replace("batch = 4", "batch = -4")) == [
        "line 2: batch = -4: expected at least 1",
        "line 7: layer 'conv1': kernel is missing",
        "line 11: layer 'conv1': key 'kernal' is unknown: did you mean 'kernel'?",
        "line 17: layer 'add1' (add): input 'batch_norm' does not exist: did you mean 'batch_norm1'?",
        "line 30: [workload] precision (item 1) = 'fp8': expected one of: bf16, fp16, fp32, fp64, tf32",
    ]


def test_lines_are_found_around_strings_comments_and_inline_tables() -> None:
    text = '''
    remarks = ["""
    [[layer]]
    type = "x"
    """]
    input = {shape = [3]}  # [[layer]]
    [[ layer ]]
    type = "bypass" # name = 1

    [["layer"]]
    type = "softmax"
    "mode" = "sideways"
    '''
    assert faults(text) == ["line 12: layer 'softmax1': mode = 'sideways': expected one of: channel, instance, last"]


def test_the_written_form_is_short() -> None:
    net, workload = read_toml(BLOCK, "block.toml")
    assert write_toml(net, workload).splitlines() == [
        'name = "block"', "batch = 4", "",
        "[input]", "shape = [16, 8, 8]", "",
        "[[layer]]", 'type = "convolution"', 'name = "conv1"', "out_channels = 16", "kernel = 3", "padding = 1", "",
        "[[layer]]", 'type = "batch_norm"', 'name = "batch_norm1"', "",
        "[[layer]]", 'type = "add"', 'name = "add1"', 'inputs = ["batch_norm1", "input"]', "",
        "[[layer]]", 'type = "flatten"', 'name = "flatten1"', "",
        "[[layer]]", 'type = "linear"', 'name = "linear1"', 'method = "circulant[block_size=2]"', "out_features = 10",
        "",
        "[workload]", 'phases = ["forward"]', 'precision = ["tf32"]', "batch = [8]",
    ]  # fmt: skip


def test_methods_of_single_layers_are_written() -> None:
    net, workload = read_toml(BLOCK, "block.toml")
    plan = {"conv1": Method.parse("weight-only"), "a.b": Method.parse("circulant[block_size=2]")}
    text = write_toml(net, workload.model_copy(update={"plan": plan}))
    assert text.splitlines()[-1] == 'plan = {"conv1" = "weight-only", "a.b" = "circulant[block_size=2]"}'
    assert read_toml(text, "block.toml")[1].plan == plan


def test_a_layer_known_from_a_trace_only_cannot_be_written() -> None:
    opaque = Opaque(name="x", inputs=("input",), operation="Mystery", shape=(1,))
    with pytest.raises(UsageError, match=r"layer 'x' \(opaque\) cannot be written"):
        write_toml(Network(name="a", inputs=(Input(shape=(1,)),), layers=(opaque,)))


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
COUNTS = st.integers(1, 99)
REALS = st.floats(0, 1, exclude_min=True, exclude_max=True)
LAYERS: dict[type[Layer], st.SearchStrategy[dict[str, Any]]] = {
    Convolution: st.fixed_dictionaries(
        {"out_channels": st.just(6), "kernel": COUNTS | st.tuples(COUNTS, COUNTS)},
        optional={
            "stride": COUNTS | st.tuples(COUNTS, COUNTS),
            "padding": COUNTS,
            "groups": st.sampled_from([1, 2, 3]),
            "bias": st.booleans(),
            "flip": st.booleans(),
            "algorithm": st.sampled_from(["direct", "fft", "winograd"]),
            "workspace_limit": st.sampled_from([0, 4096]),
            "method": st.builds(lambda size: Method("circulant", None, (("block_size", size),)), COUNTS),
        },
    ),
    Pooling: st.fixed_dictionaries(
        {"kernel": COUNTS, "stride": COUNTS},
        optional={"mode": st.sampled_from(["max", "average"]), "rounding": st.sampled_from(["ceil", "caffe"])},
    ),
    Softmax: st.fixed_dictionaries({}, optional={"algorithm": st.just("log"), "mode": st.just("last")}),
    KINDS["dropout"]: st.fixed_dictionaries({}, optional={"probability": REALS, "seed": st.integers()}),
    KINDS["local_response_norm"]: st.fixed_dictionaries(
        {}, optional={"size": COUNTS, "alpha": REALS, "k": st.floats(allow_nan=False)}
    )
    | st.fixed_dictionaries({"mode": st.just("within_channel"), "size": st.sampled_from([1, 3, 5])}),
    Embedding: st.fixed_dictionaries({"vocabulary": COUNTS, "dim": COUNTS}),
    Attention: st.fixed_dictionaries({}, optional={"heads": COUNTS, "causal": st.booleans()}),
    KINDS["concat"]: st.fixed_dictionaries({}, optional={"axis": st.integers(-3, 3)}),
}


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Networks with any wiring that names allow; shapes need not fit."""
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    sources = draw(st.integers(1, len(names) - 1))
    layers = []
    for place, name in enumerate(names[sources:], start=sources):
        kind = draw(st.sampled_from(sorted(LAYERS, key=lambda kind: kind.kind)))
        inputs = tuple(draw(st.lists(st.sampled_from(names[:place]), min_size=1, max_size=2)))
        settings = draw(LAYERS[kind]) | draw(st.fixed_dictionaries({}, optional={"propagate": st.booleans()}))
        layers.append(kind(name=name, inputs=inputs, **settings))
    shapes = st.lists(COUNTS, min_size=1, max_size=4).map(tuple)
    inputs = [Input(name=name, shape=draw(shapes), gradient=draw(st.booleans())) for name in names[:sources]]
    return Network(
        name=draw(NAMES),
        inputs=tuple(inputs),
        layers=tuple(layers),
        batch=draw(COUNTS),
        mode=draw(st.sampled_from(["composed", "standalone"])),
        remarks=tuple(draw(st.lists(st.text(max_size=9), max_size=2))),
    )


WORKLOADS = st.builds(
    Workload,
    phases=st.lists(st.sampled_from(Phase), min_size=1).map(tuple),
    precision=st.lists(st.sampled_from(["fp32", "bf16"]), min_size=1).map(tuple),
    batch=st.lists(COUNTS).map(tuple),
    impl=st.lists(st.sampled_from([Method(), Method("dense", "fft")]), min_size=1).map(tuple),
    device=NAMES,
    repeat=st.none() | COUNTS,
    check=st.booleans(),
)


@given(networks(), WORKLOADS)
def test_what_is_written_is_read(net: Network, workload: Workload) -> None:
    with patch("lamina.spec.toml.reader.check_network"):  # whether shapes fit is not the point here
        read, run = read_toml(write_toml(net, workload), "a.toml")
    assert read.model_dump() == net.model_dump()
    assert [type(layer) for layer in read.layers] == [type(layer) for layer in net.layers]
    assert run == workload


WORDS = st.sampled_from(
    ["[input]", "[[input]]", "[[layer]]", "[workload]", "name = 'a'", "type = 'bypass'", "type = 'add'", "type = 3",
     "shape = [3]", "shape = 3", "inputs = ['a', 1]", "batch = 1", "batch = 1e400", "mode = 'standalone'", "kernel = 3",
     "precision = 'fp32'", "phases = [[1]]", "layer = [{}]", "x.y = 1979-05-27", "name = [1]", "type = 'tdnn'",
     "context = []", '"""', "remarks = [1]"]
)  # fmt: skip
TEXTS = st.text() | st.lists(WORDS | st.text(max_size=5), max_size=12).map("\n".join)


@given(TEXTS, st.dictionaries(st.text(max_size=8), st.text(max_size=4), max_size=1))
def test_any_text_is_read_or_refused(text: str, variables: dict[str, str]) -> None:
    with suppress(SpecError):
        assert read_toml(text, "a.toml", variables)[0].resolve()
