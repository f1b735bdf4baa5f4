"""DNNMark's files: what it read, what it refused, and what it ignored without a word."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError
from lamina.spec import Input, Layer, Method, Network, read_dnnmark
from lamina.spec.layers import (
    Activation,
    BatchNorm,
    Bypass,
    Convolution,
    Dropout,
    Linear,
    LocalResponseNorm,
    Pooling,
    Softmax,
)

COMPOSED = """\
# A convolution, a pooling and a fully connected layer
[DNNMark]
run_mode=composed

[Convolution]
name=conv1
n=2
c=3
h=32
w=32
previous_layer=null
algo=fft
num_output=32
[Pooling]
name=pool1
previous_layer=conv1
[FullyConnected]
name=fc1
previous_layer=pool1
num_output=10
"""


def alone(section: str, *lines: str, n: int = 2) -> str:
    """A file of one layer."""
    return "\n".join(["[DNNMark]", "run_mode=standalone", f"[{section}]", f"n={n}\nc=4\nh=8\nw=8", *lines])


def layer(section: str, *lines: str) -> Layer:
    return read_dnnmark(alone(section, *lines), "file.dnnmark").layers[0]


def remarks(text: str) -> tuple[str, ...]:
    return read_dnnmark(text, "file.dnnmark").remarks


def faults(text: str, variables: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_dnnmark(text, "file.dnnmark", variables or {})
    assert caught.value.source == "file.dnnmark"
    return [str(fault) for fault in caught.value.faults]


def test_a_composed_model() -> None:
    net = read_dnnmark(COMPOSED, "folder/model.dnnmark")
    assert (net.name, net.mode, net.batch) == ("model", "composed", 2)
    assert net.inputs == (Input(name="input", shape=(3, 32, 32), gradient=True),)
    assert [(each.name, each.inputs) for each in net.layers] == [
        ("conv1", ("input",)), ("pool1", ("conv1",)), ("fc1", ("pool1",)),
    ]  # fmt: skip
    assert [each.output for each in net.resolve()] == [(2, 32, 32, 32), (2, 32, 16, 16), (2, 10, 1, 1)]
    assert net.lines == {"conv1": 5, "pool1": 14, "fc1": 17}


LIMITS = dict.fromkeys(["workspace_limit", "workspace_limit_data", "workspace_limit_weight"])
DIRECT = {"algorithm": "direct", "algorithm_data": "direct", "algorithm_weight": "direct"}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("Convolution", Convolution(name="x", out_channels=32, kernel=5, padding=2, **DIRECT)),
        ("Pooling", Pooling(name="x", kernel=3, stride=2, padding=0, mode="max", rounding="caffe")),
        ("LRN", LocalResponseNorm(name="x", size=5, alpha=1e-4, beta=0.75, k=2.0)),
        ("Activation", Activation(name="x", function="relu")),
        ("FullyConnected", Linear(name="x", out_features=4096, spatial=True)),
        ("Softmax", Softmax(name="x", algorithm="accurate", mode="channel")),
        ("BatchNorm", BatchNorm(name="x", mode="per_activation", momentum=1.0, eps=1e-5)),
        ("Dropout", Dropout(name="x", probability=0.5, seed=0)),
        ("Bypass", Bypass(name="x")),
        ("BCMFullyConnected", Linear(name="x", out_features=4096, spatial=True,
                                     method=Method.parse("circulant[block_size=32]"))),
    ],
)  # fmt: skip
def test_defaults_are_dnnmark_s(section: str, expected: Layer) -> None:
    name = f"{section.lower()}1"
    assert layer(section) == expected.model_copy(update={"name": name, "inputs": (f"{name}.input",)})


@pytest.mark.parametrize(
    ("section", "lines", "expected"),
    [
        ("Convolution", ["conv_mode=convolution"], {"flip": True}),
        ("Convolution", ["conv_mode=cross_correlation"], {"flip": False}),
        ("Convolution", ["conv_mode=transpose", "stride=2"], {"transposed": True, "stride": (2, 2)}),
        ("Convolution", ["propagation=false"], {"propagate": False}),
        ("Convolution", ["propagation=FALSE"], {"propagate": True}),
        ("Convolution", ["kernel_size=3", "kernel_size_w=1", "pad=0", "pad_h=1"],
         {"kernel": (3, 1), "padding": (1, 0)}),
        ("Convolution", ["kernel_size_h=3", "kernel_size=1"], {"kernel": (1, 1)}),
        ("Convolution", ["algo=fft"], {"algorithm": "fft", "algorithm_weight": "fft", "algorithm_data": "direct"}),
        ("Convolution", ["algo=1", "algod=winograd_nonfused"],
         {"algorithm": "direct", "algorithm_data": "winograd", "algorithm_weight": "gemm"}),
        ("Convolution", ["algo=winograd", "algofwd=2"], {"algorithm": "gemm", "algorithm_weight": "winograd"}),
        ("Convolution", ["algo=cudnn", "algod=auto", "algofwd=cudnnv7"], DIRECT),
        ("Pooling", ["pool_mode=avg_include_padding"], {"mode": "average"}),
        ("Pooling", ["pool_mode=avg_exclude_padding"], {"mode": "average_excluding_padding"}),
        ("Pooling", ["pool_mode=avg"], {"mode": "average_excluding_padding"}),
        ("Pooling", ["stride_w=1"], {"stride": (2, 1)}),
        ("LRN", ["local_size=3", "alpha=.5", "beta=1e-1", "k=1"], {"size": 3, "alpha": 0.5, "beta": 0.1, "k": 1.0}),
        ("LRN", ["lrn_mode=within_channel", "local_size=3"], {"mode": "within_channel", "size": 3}),
        ("LRN", ["lrn_mode=cross_channel_dim1"], {"mode": "cross_channel"}),
        ("Convolution", ["conv_fwd_pref=no_workspace", "conv_bwd_data_pref=fastest"], LIMITS | {"workspace_limit": 0}),
        ("Convolution", ["conv_bwd_filter_pref=specify_workspace_limit", "workspace_size=4096"],
         LIMITS | {"workspace_limit_weight": 4096}),
        ("Convolution", ["conv_bwd_data_pref=no_workspace", "algod=1"], LIMITS),
        ("Activation", ["activation_mode=soft_relu"], {"function": "soft_relu"}),
        ("Activation", ["activation_mode=clipped_relu"], {"function": "clipped_relu", "ceiling": 0.0}),
        ("Softmax", ["softmax_algo=log", "softmax_mode=instance"], {"algorithm": "log", "mode": "instance"}),
        ("BatchNorm", ["batchnorm_mode=spatial", "exp_avg_factor=0.5", "epsilon=2e-5"],
         {"mode": "spatial", "momentum": 0.5, "eps": 2e-5}),
        ("Dropout", ["dropout_probability=.3", "random_seed=7"], {"probability": 0.3, "seed": 7}),
        ("BCMFullyConnected", ["block_size=16", "optimization=KF", "num_output=128"],
         {"out_features": 128, "method": Method.parse("circulant[block_size=16,impl=fusion]")}),
        ("CBMFullyConnected", ["block_size=8", "optimized=O1"],
         {"method": Method.parse("circulant[block_size=8,impl=o1]")}),
        ("BCMFullyConnected", ["optimization=O2"], {"method": Method.parse("circulant[block_size=32,impl=o2]")}),
        ("BCMFullyConnected", ["optimization=NO"], {"method": Method.parse("circulant[block_size=32]")}),
    ],
)  # fmt: skip
def test_keys(section: str, lines: list[str], expected: dict[str, Any]) -> None:
    read = layer(section, *lines)
    assert {key: getattr(read, key) for key in expected} == expected


@pytest.mark.parametrize("mode", ["run_mode=standalone", "run_mode=none", "run_mode=banana", "run_mode=", ""])
def test_layers_that_stand_alone_have_an_input_each(mode: str) -> None:
    text = f"[DNNMark]\n{mode}\n[Pooling]\nname=p\nn=2\nc=1\nh=8\nw=8\n[LRN]\nn=2\nc=3\nh=5\nw=4\nprevious_layer=p\n"
    net = read_dnnmark(text, "a.dnnmark")
    assert net.mode == "standalone"
    assert {source.name: source.shape for source in net.inputs} == {"p.input": (1, 8, 8), "lrn1.input": (3, 5, 4)}
    assert [each.inputs for each in net.layers] == [("p.input",), ("lrn1.input",)]
    word = mode.partition("=")[2]
    word = word if word == "standalone" else "none"
    assert f"previous_layer has no effect with run_mode={word} (line 9)" in net.remarks
    assert ("run_mode=none is read as standalone (line 1)" in net.remarks) is (word == "none")


def test_several_sources_each_have_an_input() -> None:
    more = "[LRN]\nname=lrn\nprevious_layer=null\nn=2\nc=1\nh=4\nw=4\n"
    net = read_dnnmark(COMPOSED + more, "a.dnnmark")
    assert [source.name for source in net.inputs] == ["conv1.input", "lrn.input"]
    assert net.layers[3].inputs == ("lrn.input",)


def test_a_layer_may_be_called_input() -> None:
    net = read_dnnmark(COMPOSED.replace("conv1", "input"), "a.dnnmark")
    assert net.layers[0].inputs == ("input.input",)


def test_a_source_without_propagation_wants_no_gradient() -> None:
    text = COMPOSED.replace("algo=fft", "propagation=false")
    assert read_dnnmark(text, "a.dnnmark").inputs[0].gradient is False


def test_several_layers_may_read_one_and_a_dead_branch_is_reported() -> None:
    net = read_dnnmark(COMPOSED.replace("previous_layer=pool1", "previous_layer=conv1"), "a.dnnmark")
    assert [each.inputs for each in net.layers] == [("input",), ("conv1",), ("conv1",)]
    assert "no layer reads 'pool1': a dead branch, which is still computed (line 14)" in net.remarks


def test_layout_is_free() -> None:
    spread = COMPOSED.replace("=", "\t = ").replace("\n", " \r\n\t\n   ").replace("[Pooling]", "# x\n  [Pooling]")
    read, plain = read_dnnmark(spread, "a.dnnmark"), read_dnnmark(COMPOSED, "a.dnnmark")
    assert (read.layers, read.inputs) == (plain.layers, plain.inputs)


def test_only_a_first_hash_makes_a_comment() -> None:
    assert layer("Pooling", "# name=a", "  #name=b", "name=c # d").name == "c # d"


def test_a_value_is_all_after_the_first_equals_sign() -> None:
    assert layer("Pooling", "name=a=b").name == "a=b"


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (alone("FullyConnected", "num_output=12abc"), "num_output: '12abc' is read as 12 (line 8)"),
        (alone("Convolution", "pad=two"), "pad: 'two' is read as 0 (line 8)"),
        (alone("Convolution", "pad="), "pad: '' is read as 0 (line 8)"),
        (alone("LRN", "alpha=1e-4f"), "alpha: '1e-4f' is read as 0.0001 (line 8)"),
        (alone("LRN", "lrn_mode=sideways"), "lrn_mode: 'sideways' is unknown and ignored (line 8)"),
        (alone("Softmax", "softmax_algo=best"), "softmax_algo: 'best' is unknown and ignored (line 8)"),
        (alone("BatchNorm", "batchnorm_mode=x"), "batchnorm_mode: 'x' is unknown and ignored (line 8)"),
        (alone("BatchNorm", "save_intermediates=false"), "save_intermediates: is ignored: "
         "they are always saved (false crashed DNNMark) (line 8)"),
        (alone("Convolution", "conv_fwd_pref=fast"), "conv_fwd_pref: 'fast' is unknown and ignored (line 8)"),
        (alone("Convolution", "workspace_size=5"), "workspace_size has no effect: "
         "no preference is specify_workspace_limit (line 3)"),
        (alone("Convolution", "conv_bwd_filter_pref=no_workspace", "algo=fft"), "conv_bwd_filter_pref=no_workspace "
         "has no effect on fft, which does not use cuDNN's workspace (line 3)"),
        (alone("Convolution", "conv_fwd_pref=no_workspace", "conv_mode=transpose"), "conv_fwd_pref=no_workspace "
         "has no effect on transposed convolutions (line 3)"),
        (alone("Convolution"), "no convolution algorithm is given: DNNMark used IMPLICIT_GEMM and ALGO_0; "
         "read as direct (line 3)"),
        (alone("Convolution", "algo=3"), "algo=3 is cuDNN's ALGO_3; read as direct (line 3)"),
        (alone("Convolution", "algod=auto"), "algod=auto leaves the choice to cuDNN; read as direct (line 3)"),
        (alone("Convolution", "algo=best"), "algo='best' is unknown and ignored; read as direct (line 3)"),
        (alone("Convolution", "conv_mode=transpose"), "conv_mode=transpose: DNNMark used the output "
         "size of a forward convolution, lamina does not (line 3)"),
        (alone("Pooling", "pool_mode=avg"), "pool_mode=avg is that of MIOpen: its average excludes padding (line 3)"),
        (alone("Activation", "activation_mode=clipped_relu"), "clipped_relu: DNNMark fixes the ceiling at 0, "
         "so every output is 0; kept (line 3)"),
        (alone("Pooling", "pad=0", "pad=0"), "pad is given twice in one section: the last value is used (line 9)"),
        ("run_mode=composed\n" + alone("Pooling"), "text before the first section has no effect (line 1)"),
        (alone("Pooling", "[DNNMark]", "run_mode=composed", "?"), "[DNNMark] after the first layer "
         "has no effect (line 8)"),
        (alone("Pooling").replace("standalone", "alone"), "run_mode: 'alone' is unknown and ignored (line 2)"),
        (COMPOSED.replace("name=pool1", "name=pool1\nn=7"), "n, c, h and w have no effect on a layer "
         "that reads another (line 14)"),
    ],
)  # fmt: skip
def test_ignored_settings_give_a_warning(text: str, remark: str) -> None:
    assert remark in remarks(text)


def test_a_warning_lists_all_its_lines() -> None:
    text = "\n".join(alone("Convolution", "conv_fwd_pref=fast") for _ in range(3))
    (found,) = [each for each in remarks(text) if each.startswith("conv_fwd_pref")]
    assert found.endswith("(lines 8, 16, 24)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "there are no layers: expected sections such as [Convolution], [Pooling]"),
        ("just\nprose", "there are no layers"),
        (alone("pooling"), "line 3: section '[pooling]' is unknown (case-sensitive): did you mean '[Pooling]'?"),
        (alone("Pooling", "kernel=3"), "line 8: key 'kernel' is unknown in [Pooling]: did you mean 'kernel_size'?"),
        (alone("Bypass", "x=3"), "line 8: key 'x' is unknown in [Bypass]: expected one of: "
         "c, h, n, name, previous_layer, w"),
        (alone("Pooling", "pad 0"), "line 8: expected key=value, got 'pad 0'"),
        (alone("Convolution", "conv_mode=conv"), "line 8: conv_mode: 'conv' is unknown: expected one of: "
         "convolution, cross_correlation, transpose"),
        (alone("Pooling", "pool_mode=mx"), "line 8: pool_mode: 'mx' is unknown: did you mean 'max'?"),
        (alone("Activation", "activation_mode="), "line 8: activation_mode: '' is unknown: expected one of: "
         "clipped_relu, relu, sigmoid, soft_relu, tanh"),
        (alone("LRN", "lrn_mode=within_channel", "local_size=4"), "line 3: layer 'lrn1': mode within_channel "
         "needs an odd size, got 4"),
        (alone("BatchNorm", "epsilon=1e-6"), "line 8: epsilon: expected at least 1e-05, got '1e-6'"),
        (alone("BatchNorm", "exp_avg_factor=2"), "line 8: exp_avg_factor: expected 0 to 1, got '2'"),
        (alone("LRN", "k=1e999"), "line 8: k: expected a finite number, got '1e999'"),
        (alone("Convolution", "num_output=many"), "line 8: num_output: expected an integer of at least 1, "
         "got 'many' (read as 0)"),
        (alone("Convolution", "num_output=99999999999"), "line 8: num_output: '99999999999' does not fit in 32 bits"),
        (alone("Convolution", "stride=0"), "line 8: stride: expected an integer of at least 1, got '0'"),
        (alone("Convolution", "pad=-1"), "line 8: pad: expected an integer of at least 0, got '-1'"),
        (alone("Convolution", "kernel_size=20"), "line 3: layer 'convolution1' (convolution): expected an input "
         "at least as large as the kernel (20, 20) after padding, got 2x4x8x8"),
        (alone("Pooling", "pad=3"), "line 3: layer 'pooling1': padding 3 must be smaller than the window 3: "
         "a window would contain only padding"),
        (alone("Dropout", "dropout_probability=1"), "line 3: layer 'dropout1': probability must be at least 0 "
         "and below 1, got 1.0"),
        (alone("Pooling", "name=null"), "line 3: a layer cannot be called null: as previous_layer it means none"),
        (alone("Pooling", "w=0"), "line 8: w: expected an integer of at least 1, got '0'"),
        (alone("Pooling", "h=-3"), "line 8: h: expected an integer of at least 1, got '-3'"),
        (alone("Pooling", "c=three"), "line 8: c: expected an integer of at least 1, got 'three' (read as 0)"),
        (COMPOSED.replace("n=2\n", "n=0\n"), "line 7: n: expected an integer of at least 1, got '0'"),
        (alone("Pooling").replace("w=8", ""), "line 3: [Pooling] needs n, c, h and w with run_mode=standalone; "
         "missing: w"),
        ("[Pooling]\n", "line 1: [Pooling] needs n, c, h and w with run_mode=none; missing: n, c, h, w"),
        (alone("Pooling", "name=p") + "\n" + alone("LRN", "name=p"), "line 11: layer 'p' (local_response_norm): "
         "this name is already taken; give each layer a name of its own"),
        (alone("Pooling") + "\n" + alone("LRN", n=3), "line 10: n=3 differs from n=2 of line 3: "
         "a file has one batch size; put the layers into separate files"),
        (COMPOSED.replace("n=2\n", ""), "line 5: a layer with previous_layer=null needs n, c, h and w; missing: n"),
        (COMPOSED.replace("=null", "=fc1"), "line 5: the first layer of a composed model needs previous_layer=null, "
         "got 'fc1'"),
        (COMPOSED.replace("name=pool1", "name=pool1\nn=2\nc=1\nh=9\nw=9"), "line 14: a layer with n, c, h and w "
         "of a composed model needs previous_layer=null, got 'conv1'"),
        (COMPOSED.replace("previous_layer=pool1\n", ""), "line 17: [FullyConnected] needs previous_layer: "
         "the layer it reads"),
        (COMPOSED.replace("previous_layer=pool1", "previous_layer=null"), "line 17: a layer with previous_layer=null "
         "needs n, c, h and w; missing: n, c, h, w"),
        (COMPOSED.replace("previous_layer=pool1", "previous_layer=pol1"), "line 17: layer 'fc1' (linear): "
         "input 'pol1' does not exist: did you mean 'pool1'?"),
        (COMPOSED.replace("previous_layer=conv1", "previous_layer=fc1"), "line 14: layer 'pool1' (pooling): "
         "is part of a cycle: pool1 -> fc1 -> pool1"),
        ("[DNNMark]\nrun_mod=composed\n" + alone("Pooling"), "line 2: key 'run_mod' is unknown in [DNNMark]: "
         "did you mean 'run_mode'?"),
        ("[Pooling]\nn=1\0", "line 2: expected text, got a NUL byte"),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(text: str, expected: str) -> None:
    (found,) = faults(text)
    assert found.startswith(expected)


def test_all_faults_are_reported_without_consequential_ones() -> None:
    text = COMPOSED.replace("[Pooling]", "[pooling]").replace("algo=fft", "kernel_size=0\nstrid=1\nhm")
    assert faults(text + "previous_layer=pool2\n[Softmax]\nprevious_layer=fc1\n") == [
        "line 12: kernel_size: expected an integer of at least 1, got '0'",
        "line 13: key 'strid' is unknown in [Convolution]: did you mean 'stride'?",
        "line 14: expected key=value, got 'hm'",
        "line 16: section '[pooling]' is unknown (case-sensitive): did you mean '[Pooling]'?",
        "line 19: layer 'fc1' (linear): input 'pool2' does not exist: did you mean 'pool1'?",
    ]


TEMPLATE = alone("Convolution", "num_output=$K", "pad=${P}", "$ALGO${MORE}", "# $NOT").replace("n=2", "n=$N")


def test_variables_are_filled_in() -> None:
    values = {"K": "7", "P": "1", "N": "5", "ALGO": "algo=fft\n", "MORE": "algod=fft"}
    net = read_dnnmark(TEMPLATE, "a.dnntemplate", values)
    (read,) = net.layers
    assert isinstance(read, Convolution)
    assert (net.batch, read.out_channels, read.padding, read.algorithm, read.algorithm_data) == (
        5,
        7,
        (1, 1),
        "fft",
        "fft",
    )


def test_a_variable_may_be_empty() -> None:
    net = read_dnnmark(TEMPLATE, "a.dnntemplate", {"K": "7", "P": "1", "N": "5", "ALGO": "", "MORE": ""})
    assert any(remark.startswith("no convolution algorithm is given") for remark in net.remarks)


def test_missing_and_unknown_variables_are_reported_together() -> None:
    assert faults(TEMPLATE, {"K": "7", "MRE": "", "N": "1"}) == [
        "--set MRE: the file has no variable $MRE: did you mean 'MORE'?",
        "line 9: variable P has no value: set it (an empty value is allowed) with --set P=...",
        "line 10: variable ALGO has no value: set it (an empty value is allowed) with --set ALGO=...",
        "line 10: variable MORE has no value: set it (an empty value is allowed) with --set MORE=...",
    ]
    assert faults(COMPOSED, {"N": "1"}) == ["--set N: the file has no variables"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (alone("Convolution", "conv_fwd_pref=${X}"), "conv_fwd_pref (line 8)"),
        (alone("Convolution", "conv_bwd_filter_pref=$X"), "conv_bwd_filter_pref (line 8)"),
        (alone("Convolution", "workspace_size=${X}"), "workspace_size (line 8)"),
        (alone("Convolution", "pad=${X}", "pad=1"), "pad (line 8)"),
        (alone("BatchNorm", "save_intermediates=${X}"), "save_intermediates (line 8)"),
        ("algo=${X}\n" + COMPOSED, "text that is not read (line 1)"),
        (COMPOSED + "[DNNMark]\nrun_mode=$X", "text that is not read (line 22)"),
    ],
)
def test_a_variable_without_a_value_where_it_has_no_effect_is_named_in_a_note(text: str, note: str) -> None:
    assert f"variable X has no value, which has no effect: {note}" in remarks(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (alone("Convolution", "pad=${X}"), 8),
        (alone("Convolution", "pad=1", "pad=${X}"), 9),
        (alone("Convolution", "${X}=1"), 8),
        (alone("Convolution", "workspace_size=${X}", "conv_fwd_pref=specify_workspace_limit"), 8),
        (alone("LRN", "lrn_mode=${X}"), 8),
        (alone("LRN", "${X}"), 8),
        (alone("${X}"), 3),
        (COMPOSED.replace("composed", "${X}"), 3),
    ],
)
def test_a_variable_without_a_value_that_has_an_effect_is_refused(text: str, line: int) -> None:
    assert faults(text) == [
        f"line {line}: variable X has no value: set it (an empty value is allowed) with --set X=..."
    ]


def test_workspace_preferences_are_noted_with_their_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    text = alone("Convolution", "conv_fwd_pref=specify_workspace_limit", "workspace_size=64", "algo=3")
    for installed, effect in [
        (None, "has no effect without the package nvidia-cudnn-frontend"),
        (object(), "on a GPU, cuDNN's first engine with a workspace of at most 64 bytes; no effect on the CPU"),
    ]:
        monkeypatch.setattr("lamina.spec.dnnmark.workspace.find_spec", lambda name, found=installed: found)
        assert f"conv_fwd_pref=specify_workspace_limit: {effect} (line 3)" in remarks(text)


def test_faults_are_counted_but_not_all_listed() -> None:
    found = faults(alone("Pooling", *["x"] * 50))
    assert len(found) == 21
    assert found[-1] == "and 30 more faults"


def test_thousands_of_wrong_names_are_counted() -> None:
    text = COMPOSED + "".join(f"[Bypass]\nname=x{i}\nprevious_layer=x{i + 1}\n" for i in range(5000))
    assert faults(text)[::20] == [
        "line 21: layer 'x0' (bypass): input 'x1' comes later in the file; a layer reads earlier ones",
        "and 4980 more faults",
    ]


def test_noise_is_rejected() -> None:
    noise = "".join(map(chr, range(1, 0x3000))) * 50
    assert faults(noise)[0].startswith("there are no layers")
    assert len(faults(f"[Pooling]\n{noise}\n{noise}={noise}\n")) == 21


def test_a_file_of_too_many_layers_is_rejected() -> None:
    assert faults("[Bypass]\n" * 10_001) == ["expected at most 10000 layers, got 10001"]


def test_long_text_is_cut_in_messages() -> None:
    assert max(map(len, faults(alone("Pooling", "x" * 10_000, f"{'y' * 10_000}=1", f"pool_mode={'z' * 10_000}")))) < 500


LINES = st.sampled_from(
    ["[DNNMark]", "run_mode=composed", "run_mode=standalone", "[Convolution]", "[Pooling]", "[BatchNorm]", "[Bypass]",
     "n=1", "c=2", "h=9", "w=9", "name=a", "name=b", "previous_layer=null", "previous_layer=a", "num_output=3",
     "kernel_size=2", "pad=9", "stride=-1", "epsilon=nan", "algo=x", "$A", "=", "[", "[]", "#"]
)  # fmt: skip


@given(st.text() | st.lists(LINES | st.text(max_size=8), max_size=30).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(SpecError):
        assert read_dnnmark(text, "a.dnnmark").resolve()


WINDOW = {"kernel": st.integers(1, 3), "padding": st.integers(0, 1), "stride": st.integers(1, 2)}
KEYS = {"kernel": "kernel_size", "padding": "pad", "stride": "stride"}
REAL = st.floats(0, 1, allow_subnormal=False)
GENERATED = st.lists(
    st.one_of(
        st.fixed_dictionaries({"section": st.just("Convolution"), "num_output": st.integers(1, 9), **WINDOW}),
        st.fixed_dictionaries({"section": st.just("LRN"), "alpha": REAL, "k": REAL}),
        st.fixed_dictionaries({"section": st.just("Dropout"), "dropout_probability": st.floats(0, 0.9)}),
        st.fixed_dictionaries({"section": st.just("BatchNorm"), "exp_avg_factor": REAL}),
    ),
    min_size=1,
    max_size=5,
)


def written(number: int, settings: dict[str, Any]) -> tuple[list[str], Layer]:
    """The lines of a generated section, and the layer they mean."""
    own = {key: value for key, value in settings.items() if key != "section"}
    reads = f"layer{number - 1}" if number else "null"
    lines = [f"{KEYS.get(key, key)}={value}" for key, value in own.items()]
    lines += [f"name=layer{number}", f"previous_layer={reads}", *([] if number else ["n=1", "c=3", "h=64", "w=64"])]
    common: dict[str, Any] = {"name": f"layer{number}", "inputs": (reads if number else "input",)}
    match settings["section"]:
        case "Convolution":
            return lines, Convolution(**common, out_channels=own.pop("num_output"), **own)
        case "LRN":
            return lines, LocalResponseNorm(**common, **own)
        case "Dropout":
            return lines, Dropout(**common, probability=own["dropout_probability"])
        case _:
            return lines, BatchNorm(**common, mode="per_activation", momentum=own["exp_avg_factor"])


@given(GENERATED, st.randoms(use_true_random=False))
def test_generated_files_are_read_as_they_were_meant(described: list[dict[str, Any]], random: Any) -> None:
    """Settings written in any order and layout come back as the layers made from them directly."""
    meant, text = [], ["[DNNMark]", "run_mode=composed"]
    for number, settings in enumerate(described):
        lines, layer = written(number, settings)
        random.shuffle(lines)
        before, after = (lambda: random.choice(["", " ", "\t"])), (lambda: random.choice(["", " ", "\n# x", "\n"]))
        text += [f"{before()}{line}{after()}" for line in (f"[{settings['section']}]", *lines)]
        meant.append(layer)
    net = read_dnnmark("\n".join(text), "a.dnnmark")
    expected = Network(name="a", inputs=(Input(shape=(3, 64, 64), gradient=True),), layers=tuple(meant))
    assert net.model_dump(exclude={"remarks"}) == expected.model_dump(exclude={"remarks"})
