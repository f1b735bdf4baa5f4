"""What the cost model predicts, what is chosen from it, and that layers do as was chosen."""

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.methods.activation_sparsity import Sparse, functional
from lamina.accelerate.methods.activation_sparsity import nn as layers
from lamina.accelerate.methods.activation_sparsity.cost import (
    Calibration,
    Line,
    Measured,
    PhaseImpls,
    PhaseSelection,
    Size,
    choose,
    predict,
    report,
    union_density,
)
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d, SparseAdaptiveLinear, choices_of
from lamina.accelerate.registry import configuration, method_of
from lamina.accelerate.training.sparsity_monitor import Monitor
from lamina.accelerate.training.sparsity_monitor.observation import Observation
from lamina.errors import UsageError
from lamina.spec import Method, Phase

# Operations and bytes per microsecond.
CONSTANTS = Calibration(dense=50e6, nonzero=12e6, union=300e6, bandwidth=4e6, launch_us=1)
SIZE = Size(512, 12544, 2304, 256 * 12544, 4)


@dataclass
class Known:
    density: float
    union_density: Mapping[int, float] = field(default_factory=dict)


def test_predictions_are_as_computed_by_hand() -> None:
    times = predict(SIZE, Known(0.1, {128: 0.5}), CONSTANTS)
    operations = 2 * 512 * 12544 * 2304
    scan = 256 * 12544 * 4 / 4e6
    assert times["dense"] == pytest.approx(operations / 50e6 + 1)
    assert times["nonzero"] == pytest.approx(2 * scan + 0.1 * scan + 0.1 * operations / 12e6 + 4)
    assert times["row_union"] == pytest.approx(scan + 0.5 * operations / 300e6 + 3)
    assert "row_union" not in predict(SIZE, Known(0.1, {32: 0.5}), CONSTANTS)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 10))
def test_dense_below_the_min_speedup(density: float, union: float, min_speedup: float) -> None:
    choice = choose(SIZE, Known(density, {128: union}), CONSTANTS, min_speedup)
    best = min(choice.times_us.values())
    if choice.impl == "dense":
        assert best * min_speedup > choice.times_us["dense"] or best == choice.times_us["dense"]
    else:
        assert choice.times_us[choice.impl] == best <= choice.times_us["dense"] / min_speedup * (1 + 1e-12)


@given(st.floats(0, 1), st.floats(0, 1))
def test_fewer_zeros_are_never_predicted_faster(one: float, other: float) -> None:
    low, high = sorted((one, other))
    fewer, more = (predict(SIZE, Known(d, {128: d}), CONSTANTS) for d in (low, high))
    assert all(fewer[name] <= more[name] for name in more)


def test_what_is_not_known_is_taken_to_have_no_zeros_and_the_choice_says_so() -> None:
    assert choose(SIZE, Known(0.01), None, 1.1) == PhaseSelection("dense", "dense: no calibration")
    for union, impl in ((300e6, "row_union"), (50e6, "dense")):
        constants = replace(CONSTANTS, union=union)
        choice = choose(SIZE, None, constants, 1.1)
        assert choice.impl == impl and "at unknown density" in choice.reason
        assert choice.times_us == predict(SIZE, Known(1.0, {128: 1.0}), constants)
    near = choose(SIZE, Known(0.22), CONSTANTS, 1 / 0.7)
    assert near.impl == "dense" and near.reason.endswith("the speedup of nonzero is below 1.42857")


def test_a_measured_dense_time_takes_the_place_of_the_predicted_one() -> None:
    assert choose(SIZE, Known(0.1), CONSTANTS, 1.1).impl == "nonzero"
    slow = choose(SIZE, Known(0.1), CONSTANTS, 1.1, dense_us=100.0)
    assert slow.impl == "dense" and slow.times_us["dense"] == 100.0
    with pytest.raises(UsageError, match="expected a positive time, got 0"):
        choose(SIZE, Known(0.1), CONSTANTS, 1.1, dense_us=0.0)
    with pytest.raises(UsageError, match=r"within 0\.\.1, got 1\.5"):
        choose(SIZE, Known(1.5), CONSTANTS, 1.1)


def test_measured_times_are_read_off_their_lines() -> None:
    line = Line.through((0.3, 70.0), (0.1, 30.0))
    assert line == Line(pytest.approx(10.0), pytest.approx(200.0)) and line.at(0.2) == pytest.approx(50.0)
    assert Line.through((0.1, 30.0), (0.3, 20.0)) == Line(20.0, 0.0), "no time falls with the share"
    with pytest.raises(UsageError, match=r"two densities, got both at 0\.1"):
        Line.through((0.1, 1.0), (0.1, 2.0))
    times = predict(SIZE, Known(0.2, {128: 0.5}), Measured(90.0, line, Line(5.0, 100.0)))
    assert times == {"dense": 90.0, "nonzero": pytest.approx(50.0), "row_union": 55.0}
    assert predict(SIZE, Known(0.2), Measured(90.0, None, Line(5.0, 100.0))) == {"dense": 90.0}
    assert choose(SIZE, Known(0.2), Measured(90.0, line), 1.1).impl == "nonzero"
    assert choose(SIZE, Known(0.38), Measured(90.0, line), 1.1).impl == "dense"


def test_the_share_of_rows_over_more_columns_than_were_counted() -> None:
    dead = {64: 0.1, 128: 0.1}
    assert union_density(dead, 128) == 0.1 == union_density(dead, 100)
    assert union_density(dead, 3136) == pytest.approx(0.1), "of dead channels all columns tell the same"
    # Independent zeros: 1 - (1 - d) ** width, at any width.
    alone = {width: 1 - 0.99**width for width in (64, 128)}
    assert union_density(alone, 512) == pytest.approx(1 - 0.99**512)
    assert union_density({}, 64) is None and union_density({128: 0.5}, 1000) is None
    assert union_density({64: 1.0, 128: 1.0}, 1000) == 1.0
    large = Size(512, 12544, 2304, 256 * 12544, 4, 784)
    assert (
        predict(large, Known(0.01, alone), CONSTANTS)["row_union"]
        > predict(SIZE, Known(0.01, alone), CONSTANTS)["row_union"]
    )


def test_an_observation_of_the_monitor_is_a_density() -> None:
    unions = {2: 150, 16: 20, 32: 12, 64: 8, 128: 5}
    seen = Observation("relu", 3, 256, 12544, 1000, 200, 9, unions)
    assert predict(SIZE, seen, CONSTANTS)["row_union"] < predict(SIZE, Known(0.5, {128: 0.5}), CONSTANTS)["row_union"]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers choose as they would there; the kernels are interpreted."""
    monkeypatch.setattr(functional, "is_supported", lambda x: x.dtype != torch.float64)


def sparse_input(*shape: int) -> Tensor:
    return torch.where(torch.rand(shape) < 0.7, 0.0, torch.randn(shape)).half().float()


@pytest.mark.usefixtures("on_a_gpu")
def test_each_phase_is_chosen_by_its_own_size_and_density() -> None:
    layer = SparseAdaptiveLinear(512, 300)
    layer.calibration, layer.density, layer.gradient_density = CONSTANTS, lambda: Known(0.01), lambda: Known(1.0)
    assert layer.phase_impls(torch.zeros(4096, 512)) == PhaseImpls("nonzero", "dense", "nonzero")
    layer.gradient_density = lambda: Known(0.5, {64: 0.01, 128: 0.01})
    assert layer.phase_impls(torch.zeros(8192, 512)) == PhaseImpls("nonzero", "row_union", "nonzero")
    assert layer.phase_impls(torch.zeros(2, 512)) == PhaseImpls()
    conv = SparseAdaptiveConv2d(64, 512, 3, 2, padding=1)
    conv.calibration, conv.density, conv.gradient_density = CONSTANTS, lambda: Known(0.01), lambda: Known(0.01)
    assert conv.phase_impls(torch.zeros(8, 64, 56, 56)) == PhaseImpls("nonzero")
    rows = report(choices_of(nn.Sequential(layer, conv)))
    assert [row[:3] for row in rows][3:] == [
        ("1", "forward", "nonzero"), ("1", "backward_data", "dense"), ("1", "backward_weight", "dense"),
    ]  # fmt: skip
    assert rows[4][3] == "dense: stride (2, 2) is not supported"
    assert "density 0.01" in rows[3][3]


@pytest.mark.usefixtures("on_a_gpu")
def test_a_phase_that_was_not_measured_is_dense() -> None:
    layer = SparseAdaptiveConv2d(64, 512, 3, padding=1)
    layer.calibration = {Phase.FORWARD: Measured(90.0, None, Line(5.0, 100.0))}
    layer.density = layer.gradient_density = lambda: Known(0.1, {64: 0.1, 128: 0.1})
    assert layer.phase_impls(torch.zeros(8, 64, 28, 28)) == PhaseImpls("row_union")
    layer.density = lambda: Known(0.1, {64: 0.5, 128: 0.7})
    assert layer.phase_impls(torch.zeros(8, 64, 28, 28)) == PhaseImpls()
    assert layer.choices[Phase.BACKWARD_DATA].reason == "dense: no calibration"


@pytest.mark.parametrize("source", [None, lambda: None, lambda: Known(1.0, {64: 1.0})])
@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(9, 5), lambda: nn.Conv2d(3, 5, 3, 2, 1), lambda: nn.Conv2d(3, 5, 2)]
)
@pytest.mark.usefixtures("on_a_gpu")
def test_dense_is_bitwise_the_dense_layer(make: Any, source: Any) -> None:
    dense = make()
    ours, _ = convert(copy.deepcopy(dense), Sparse())
    ours.calibration, ours.density = CONSTANTS, source
    x = sparse_input(4, 9) if isinstance(dense, nn.Linear) else sparse_input(2, 3, 6, 5)
    results = []
    for layer in (ours, dense):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        results.append([y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert {choice.impl for choice in ours.choices.values()} == {"dense"}


@pytest.mark.usefixtures("on_a_gpu")
def test_a_choice_is_made_again_when_something_changed() -> None:
    layer, x = SparseAdaptiveLinear(512, 300), torch.zeros(4096, 512)
    assert layer.phase_impls(x) == PhaseImpls()
    layer.calibration = CONSTANTS
    assert layer.phase_impls(x).forward == "row_union" and "unknown density" in layer.choices[Phase.FORWARD].reason
    layer.density = lambda: Known(0.01)
    assert layer.phase_impls(x).forward == "nonzero"
    seen = layer.choices
    assert layer.phase_impls(torch.ones(4096, 512)).forward == "nonzero" and layer.choices is seen
    for change, back in (({"min_speedup": 100.0}, {"min_speedup": 1.1}), ({"impl": "row_union"}, {"impl": "auto"})):
        vars(layer).update(change)
        assert layer.phase_impls(x).forward != "nonzero"
        vars(layer).update(back)
        assert layer.phase_impls(x).forward == "nonzero"
    layer.dense_us[Phase.FORWARD] = 1e-3
    assert layer.phase_impls(x).forward == "dense"
    del layer.dense_us[Phase.FORWARD]
    assert layer.phase_impls(x[:2]).forward == "dense" and layer.phase_impls(x.double()).forward == "dense"


@pytest.mark.usefixtures("on_a_gpu")
def test_a_layer_chooses_by_what_the_monitor_saw() -> None:
    model = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), SparseAdaptiveLinear(512, 300))
    layer: Any = model[2]
    layer.calibration = Calibration(dense=1.0, nonzero=1e6, union=1e6, bandwidth=1e9, launch_us=1e-6)
    with Monitor(model, exhaustive=True) as monitor:
        layer.density = partial(monitor.latest, "1")
        model(torch.randn(4, 8))
        assert "at unknown density" in layer.choices[Phase.FORWARD].reason
        monitor.finish()
        seen = monitor.latest("1")
        assert seen is not None and seen.density == monitor.observations[-1].density
        assert layer.phase_impls(torch.zeros(4, 512)).forward != "dense"
        assert f"at density {seen.density:.3g}" in layer.choices[Phase.FORWARD].reason
    assert monitor.latest("2") is None


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 5, 5, 5)], ids=str)
def test_inputs_that_are_no_images_are_left_to_torch_to_refuse(shape: tuple[int, ...]) -> None:
    layer = SparseAdaptiveConv2d(3, 4, 3)
    layer.calibration, layer.density = CONSTANTS, lambda: Known(0.01)
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D"):
        layer(torch.zeros(shape))


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["reference", "nonzero", "row_union"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: nn.Linear(9, 5), (2, 2, 9)), (lambda: nn.Conv2d(3, 5, (1, 2), padding="same", dilation=2), (3, 2, 5))],
)
def test_an_implementation_can_be_asked_for(make: Any, shape: tuple[int, ...], impl: Any) -> None:
    dense, x = make(), sparse_input(*shape)
    ours, record = convert(copy.deepcopy(dense), Sparse(impl=impl))
    assert record.replaced and type(ours) in (SparseAdaptiveLinear, SparseAdaptiveConv2d)
    results = []
    for layer in (ours, dense):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        upstream = torch.ones_like(y)
        results.append([y, *torch.autograd.grad(y, [leaf, *layer.parameters()], upstream)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert ours.choices[Phase.FORWARD] == PhaseSelection(impl, f"{impl}: requested")


def test_copies_know_no_density() -> None:
    layer = SparseAdaptiveLinear(4, 3)
    layer.density = lambda: Known(0.1)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.density is None and torch.equal(twin.weight, layer.weight)
    assert layer.density is not None


def test_pickles_and_options_of_former_versions_are_read() -> None:
    layer = SparseAdaptiveLinear(4, 3, impl="row_union")
    state = layer.__getstate__()
    state["impl"], state["margin"], state["_planned"] = "union", 0.2, None
    state["choices"] = {Phase.FORWARD: PhaseSelection("rounded", "")}  # type: ignore[arg-type]
    del state["min_speedup"], state["_cached_impls"]
    old = SparseAdaptiveLinear.__new__(SparseAdaptiveLinear)
    old.__setstate__(state)
    assert old.impl == "row_union" and old.min_speedup == pytest.approx(1.25) and not hasattr(old, "margin")
    assert old.choices[Phase.FORWARD].impl == "row_union_fp16"
    assert old.phase_impls(torch.zeros(2, 4)) == PhaseImpls("row_union", "row_union", "row_union")
    assert Sparse(impl="rounded") == Sparse(impl="row_union_fp16")  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="min_speedup"):
        assert Sparse(margin=0.2) == Sparse(min_speedup=1.25)
    assert SparseAdaptiveConv2d(4, 3, 2, impl="union", margin=0.5).min_speedup == 2.0  # type: ignore[arg-type]
    assert str(method_of(configuration(Method.parse("sparse[impl=union]")))) == "sparse[impl=row_union]"


@pytest.mark.usefixtures("where_kernels_run")
def test_the_gradient_of_a_relu_needs_only_what_it_lets_through() -> None:
    a, z = torch.randn(3, 6), torch.randn(6, 5)
    z[:, 1] = -1
    results = []
    for impl, masked in (("row_union", True), ("dense", False)):
        leaves = a.clone().requires_grad_(), z.clone().requires_grad_()
        c = functional.matmul(leaves[0], F.relu(leaves[1]), impl=impl, masked=masked)
        results.append(torch.autograd.grad(c.square().sum(), leaves))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["reference", "nonzero", "row_union", "dense"])
def test_autocast_decides_the_type_of_both_operands(impl: Any) -> None:
    a, b = torch.randn(3, 6), sparse_input(6, 5).bfloat16()
    with torch.autocast(b.device.type, torch.bfloat16):
        c = functional.matmul(a, b, impl=impl)
    assert c.dtype == torch.bfloat16
    torch.testing.assert_close(c.double(), a.bfloat16().double() @ b.double(), rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["kernel", "reference"])
def test_float16_needs_no_scale(impl: Any) -> None:
    x = torch.tensor([[65504.0], [6e-8]], dtype=torch.float16)
    sparse = functional.compress(x, impl=impl)
    assert sparse.scales.tolist() == [1.0] and torch.equal(layers.functional.reference.to_dense(sparse, x.dtype), x)


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["kernel", "reference"])
@pytest.mark.parametrize("capacity", [None, "measure", 5])
def test_compress_gives_the_slots_that_were_asked_for(capacity: Any, impl: Any) -> None:
    x = torch.zeros(6, 4)
    x[1:4, 2] = 1.5
    sparse = functional.compress(x, capacity=capacity, impl=impl)
    assert sparse.capacity == {None: 6, "measure": 3, 5: 5}[capacity]
    assert sparse.counts.tolist() == [[0, 0, 3, 0]] and sparse.nonzeros == 3
    assert torch.equal(layers.functional.reference.to_dense(sparse), x)
