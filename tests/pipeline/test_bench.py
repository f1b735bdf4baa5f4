"""bench: rows for every phase, kept as they are measured, resumed where they ended."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina import measure, pipeline
from lamina.accelerate.select import Cache, Selector
from lamina.build import Target, from_external, from_network
from lamina.build.models.external import External
from lamina.errors import MissingError, UsageError
from lamina.pipeline.selected import How
from lamina.record import LayerRun, Roofs, Timing
from lamina.spec import Input, Method, Network, Phase, Workload
from lamina.spec import layers as spec
from lamina.store import Store, open_store

ROOFS = Roofs("test", "2026-01-01", 1, {"torch": torch.__version__}, 10.0, 8.0, {"fp32": 100.0}, 5.0, 5.0)
QUICK = Workload(repeat=2, batch=(2,))


def network(*layers: spec.Layer, mode: str = "composed") -> Target:
    source = Input(shape=(3, 8, 8))
    return from_network(Network(name="small", inputs=(source,), layers=layers, mode=mode))  # type: ignore[arg-type]


SMALL = network(
    spec.Convolution(name="conv", inputs=("input",), out_channels=4, kernel=3, padding=1),
    spec.Activation(name="relu", inputs=("conv",)),
    spec.Linear(name="fc", inputs=("relu",), out_features=5, spatial=True),
)
ROWS = {
    ("conv", "forward"),
    ("conv", "backward_weight"),
    ("relu", "forward"),
    ("relu", "backward_data"),
    ("fc", "forward"),
    ("fc", "backward_data"),
    ("fc", "backward_weight"),
    ("small", "step"),
}


@pytest.fixture(autouse=True)
def known_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring a machine's roofs takes seconds; these tests are about rows."""
    monkeypatch.setattr(measure, "roofs", lambda device, cache_dir, refresh=False: ROOFS)


def timed(rows: tuple[LayerRun, ...]) -> set[tuple[str, str]]:
    return {(row.layer, row.phase) for row in rows if row.timing}


def test_every_phase_and_the_whole_step_get_a_row(store: Store, tmp_path: Path) -> None:
    this = pipeline.bench(SMALL, QUICK, store, cache=tmp_path)
    rows = store.layers(this.id)
    assert this.status == "done" and timed(rows) == ROWS
    (skipped,) = [row for row in rows if row.timing is None]
    assert (skipped.layer, skipped.phase, skipped.outcome) == ("conv", "backward_data", "skipped")
    conv = next(row for row in rows if (row.layer, row.phase) == ("conv", "forward"))
    assert conv.flops == 2 * 2 * 4 * 3 * 9 * 64 and conv.rel_error is not None and conv.rel_error < 1e-5
    assert conv.peak_bytes is not None and conv.peak_bytes >= 2 * 4 * 64 * 4


def test_the_grid_is_every_combination(store: Store, tmp_path: Path) -> None:
    workload = QUICK.model_copy(
        update={
            "precision": ("fp32", "bf16"),
            "batch": (1, 2),
            "layout": ("nchw", "nhwc"),
            "phases": (Phase.FORWARD,),
        }
    )
    rows = store.layers(pipeline.bench(SMALL, workload, store, cache=tmp_path).id)
    assert len({(row.precision, row.batch, row.layout) for row in rows}) == 8
    assert len(rows) == 8 * 4


def test_a_killed_run_keeps_its_rows_and_resuming_completes_it(store: Store, tmp_path: Path) -> None:
    seen = []

    def stop(event: object) -> None:
        if isinstance(event, LayerRun):
            seen.append(event)
            if len(seen) == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.bench(SMALL, QUICK, store, cache=tmp_path, watch=stop)
    (interrupted,) = store.runs()
    kept = store.layers(interrupted.id)
    assert interrupted.status == "interrupted" and len(kept) == 4

    resumed = pipeline.bench(SMALL, QUICK, store, cache=tmp_path, resume=True)
    rows = store.layers(resumed.id)
    assert resumed.id == interrupted.id and resumed.status == "done" and timed(rows) == ROWS
    assert set(kept) <= set(rows), "a row that was there was measured again"
    assert len(store.runs()) == 1


def test_other_work_is_not_resumed(store: Store, tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, LayerRun):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.bench(SMALL, QUICK, store, cache=tmp_path, watch=stop)
    other = QUICK.model_copy(update={"precision": ("bf16",)})
    pipeline.bench(SMALL, other, store, cache=tmp_path, resume=True)
    assert len(store.runs()) == 2


def test_algorithms_are_compared_and_layers_they_cannot_do_say_why(store: Store, tmp_path: Path) -> None:
    methods = tuple(Method.parse(text) for text in ("dense", "dense:winograd", "dense:fft", "dense:gemm"))
    this = pipeline.bench(SMALL, QUICK.model_copy(update={"impl": methods}), store, cache=tmp_path)
    rows = store.layers(this.id)
    conv = {row.impl: row for row in rows if (row.layer, row.phase) == ("conv", "forward")}
    assert set(conv) == {"dense", "dense:winograd", "dense:fft", "dense:gemm"}
    assert all(row.timing for row in conv.values())
    reasons = {row.reason for row in rows if row.layer == "fc" and row.impl == "dense:fft"}
    assert reasons == {"dense:fft is for convolutions, got linear"}


def test_a_layer_that_fails_is_a_row_and_the_run_goes_on(store: Store, tmp_path: Path) -> None:
    # Average pooling over three axes, which local response normalisation uses, has no bf16 form on the CPU.
    lrn = network(
        spec.LocalResponseNorm(name="lrn", inputs=("input",)),
        spec.Linear(name="fc", inputs=("lrn",), out_features=5, spatial=True),
    )
    this = pipeline.bench(lrn, QUICK.model_copy(update={"precision": ("bf16",)}), store, cache=tmp_path)
    rows = {(row.layer, row.phase): row for row in store.layers(this.id)}
    assert rows["lrn", "forward"].outcome == "failed" and "BFloat16" in rows["lrn", "forward"].reason
    assert rows["fc", "backward_weight"].outcome == "ok" and this.status == "done"


def test_standalone_layers_have_input_gradients_and_no_whole_step(store: Store, tmp_path: Path) -> None:
    alone = from_network(
        Network(
            name="two",
            mode="standalone",
            inputs=(Input(name="a.input", shape=(3, 8, 8), gradient=True), Input(name="b.input", shape=(10,))),
            layers=(
                spec.Convolution(name="a", inputs=("a.input",), out_channels=4, kernel=3),
                spec.Linear(name="b", inputs=("b.input",), out_features=5),
            ),
        )
    )
    rows = store.layers(pipeline.bench(alone, QUICK, store, cache=tmp_path).id)
    assert ("a", "backward_data") in timed(rows) and ("b", "backward_data") not in timed(rows)
    assert not any(row.phase == "step" for row in rows)


@pytest.mark.parametrize(
    ("update", "error"),
    [
        ({"impl": (Method.parse("circulant[blocksize=8]"),)}, UsageError),
        ({"impl": (Method("dense", "winogard"),)}, UsageError),
        ({"clocks": ("events",)}, UsageError),
        ({"device": "cuda"}, MissingError),
        ({"data": "no-such-data"}, UsageError),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_run_begins(
    store: Store, tmp_path: Path, update: dict[str, object], error: type[Exception]
) -> None:
    if update.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(error):
        pipeline.bench(SMALL, QUICK.model_copy(update=update), store, cache=tmp_path)
    assert store.runs() == ()


def test_a_layer_s_own_method_is_asked_for_before_the_run(store: Store, tmp_path: Path) -> None:
    own = spec.Linear(name="fc", inputs=("input",), out_features=5, spatial=True, method="sparse[blocks=8]")
    with pytest.raises(UsageError, match="option 'blocks' is unknown"):
        pipeline.bench(network(own), QUICK, store, cache=tmp_path)


def test_functions_between_modules_are_measured_too(store: Store, tmp_path: Path) -> None:
    target, _ = pipeline.find("resnet10_cifar")
    workload = QUICK.model_copy(update={"phases": (Phase.FORWARD,), "repeat": 1, "batch": (1,)})
    rows = {row.layer: row for row in store.layers(pipeline.bench(target, workload, store, cache=tmp_path).id)}
    assert rows["layer1.0.add"].outcome == "ok" and 0 < (rows["layer1.0.add"].rel_error or 1) < 1e-6


class Bessel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x).detach() + x


def test_flops_of_a_network_are_those_of_its_counted_layers(store: Store, tmp_path: Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 6), Bessel(), torch.nn.Linear(6, 4))
    target = Target("partly", (Input(shape=(8,)),), lambda classes: layers, classes=4)
    this = pipeline.bench(target, QUICK, store, cache=tmp_path)
    rows = {(row.layer, row.phase): row for row in store.layers(this.id)}
    step = rows["partly", "step"]
    phases = 3
    assert step.flops == phases * 2 * 2 * (8 * 6 + 6 * 4) and step.uncounted == 1
    assert rows["1", "forward"].flops is None and rows["0", "forward"].uncounted == 0


def test_circulant_layers_are_benched_beside_dense_ones(store: Store, tmp_path: Path) -> None:
    methods = tuple(Method.parse(text) for text in ("dense", "circulant[block_size=4]"))
    rows = store.layers(pipeline.bench(SMALL, QUICK.model_copy(update={"impl": methods}), store, cache=tmp_path).id)
    fc = {row.impl: row for row in rows if (row.layer, row.phase) == ("fc", "backward_weight")}
    assert fc["circulant[block_size=4]"].timing and fc["circulant[block_size=4]"].parameters == 2 * 64 * 4
    assert fc["dense"].parameters == 5 * 256 and fc["dense"].flops and fc["circulant[block_size=4]"].flops is None
    refused = {row.reason for row in rows if row.impl != "dense" and row.outcome == "skipped" and row.layer != "fc"}
    assert any("block size 4 exceeds its 3 input channels" in reason for reason in refused)
    assert any("has no weights" in reason for reason in refused)


IMPLEMENTATIONS = ("dense", "circulant[block_size=4]", "sparse", "eliminated[keep=0.5]", "fused")


class Branched(nn.Module):
    """Functions instead of modules, no ``Sequential``, and a convolution whose output has two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(36, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.first(x)), 2)
        z = self.second(y)
        return torch.tanh(self.fc((z + F.relu(z)).flatten(1)))


def benched(target: Target, store: Store, cache: Path, *impls: str) -> tuple[LayerRun, ...]:
    methods = tuple(Method.parse(impl) for impl in impls)
    return store.layers(pipeline.bench(target, QUICK.model_copy(update={"impl": methods}), store, cache=cache).id)


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[LayerRun, ...]:
    """LeNet-5 in every implementation."""
    with pytest.MonkeyPatch.context() as patch, open_store(":memory:") as store:
        patch.setattr(measure, "roofs", lambda device, cache_dir, refresh=False: ROOFS)
        cache = tmp_path_factory.mktemp("cache")
        return benched(pipeline.find("lenet5")[0], store, cache, *IMPLEMENTATIONS, "dense:fft")


def test_every_row_says_what_ran(lenet: tuple[LayerRun, ...]) -> None:
    rows = [row for row in lenet if row.impl in IMPLEMENTATIONS]
    assert {row.impl for row in rows} == set(IMPLEMENTATIONS)
    assert all(bool(row.executed_impl) == (row.timing is not None) for row in rows)
    assert all(row.reason for row in rows if row.timing is None)
    ran = {impl: {row.executed_impl for row in rows if row.timing and row.impl == impl} for impl in IMPLEMENTATIONS}
    assert ran["dense"] == {"dense"}
    assert {name.partition("[")[0] for name in ran["circulant[block_size=4]"]} == {"circulant"}
    kept = {row.layer: row.selection_reason for row in rows if row.impl == "eliminated[keep=0.5]" and row.fell_back}
    assert kept == {"features.0": "no input was pruned"}  # it has one
    assert {name.partition("[")[0] for name in ran["eliminated[keep=0.5]"]} == {"eliminated", "dense"}
    assert {name.partition("[")[0].partition(" ")[0] for name in ran["fused"]} == {"fused"}
    for row in rows:
        if row.impl == "sparse" and row.timing:
            assert row.executed_impl.startswith("sparse") or (row.executed_impl == "dense" and row.selection_reason)
            assert row.fell_back == (row.executed_impl == "dense")


def test_fused_units_are_rows_over_the_layers_that_they_cover(lenet: tuple[LayerRun, ...]) -> None:
    rows = [row for row in lenet if row.impl == "fused" and row.phase != "step"]
    units = {row.layer: row.kind for row in rows if row.timing}
    assert units == {
        "features.0 + features.1 + features.2": "Conv2d + ReLU + MaxPool2d",
        "features.3 + features.4 + features.5": "Conv2d + ReLU + MaxPool2d",
        "classifier.0 + classifier.1": "Linear + ReLU",
        "classifier.2 + classifier.3": "Linear + ReLU",
    }
    assert all(row.rel_error is not None and row.rel_error < 1e-5 for row in rows if row.timing)
    second = {row.phase: row for row in rows if row.layer.startswith("features.3")}
    assert set(second) == {"forward", "backward_data", "backward_weight"} and second["forward"].place == 3
    alone = {row.layer: row.reason for row in rows if not row.timing and " + " not in row.layer}
    assert alone == {"classifier.4": "fused: no activation follows it directly"}


def test_fused_units_need_no_sequential(store: Store, tmp_path: Path) -> None:
    target = from_external("branched", lambda: External(Branched(), (3, 8, 8), 5))
    rows = [row for row in benched(target, store, tmp_path, "fused") if row.phase != "step"]
    units = {row.layer: row.kind for row in rows if row.timing}
    assert units == {"first + relu + max_pool2d": "Conv2d + ReLU + MaxPool2d", "fc + tanh": "Linear + Tanh"}
    assert {row.reason for row in rows if row.layer == "second"} == {"fused: no ReLU follows it directly"}


def test_a_fused_step_needs_no_sequential(store: Store, tmp_path: Path) -> None:
    target = from_external("branched", lambda: External(Branched(), (3, 8, 8), 5))
    steps = {row.impl: row for row in benched(target, store, tmp_path, "dense", "fused") if row.phase == "step"}
    assert steps["fused"].timing and steps["fused"].executed_impl == "fused (2 of 3 layers)"
    assert steps["fused"].selection_reason == "second: no ReLU follows it directly"
    assert steps["fused"].parameters == steps["dense"].parameters


class FixedTimes(Selector):
    """A selector whose timer knows all times: circulant layers take 9 us, dense ones 10 us, or as given."""

    def __init__(self, dense_us: float) -> None:
        def timer(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
            times = {name: dense_us if name == "dense" else 9.0 for name in steps}
            return {name: Timing("cpu", "-", us, us, us, 9) for name, us in times.items()}

        super().__init__(timer, Cache(None, {}), "eager", training=True)


def selected(store: Store, cache: Path, how: How, impl: str = "circulant[block_size=4]") -> dict[Any, LayerRun]:
    workload = QUICK.model_copy(update={"impl": (Method.parse(impl),)})
    rows = store.layers(pipeline.bench(SMALL, workload, store, cache=cache, select=how).id)
    assert store.runs()[0].config["select"] == how
    return {(row.layer, row.phase): row for row in rows}


@pytest.mark.parametrize(("dense_us", "ran"), [(10.0, "circulant[block_size=4,impl=reference]"), (5.0, "dense")])
def test_a_layer_runs_by_its_method_where_that_is_faster(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense_us: float, ran: str
) -> None:
    monkeypatch.setattr(pipeline.selected, "selector", lambda *a: FixedTimes(dense_us))
    rows = selected(store, tmp_path, "measure")
    assert {row.impl for row in rows.values()} == {"circulant[block_size=4]"}
    for phase in ("forward", "backward_data", "backward_weight"):
        fc = rows["fc", phase]
        assert fc.timing and fc.executed_impl == ran and fc.fell_back == (ran == "dense")
        assert "9 us" in fc.selection_reason and not fc.selection_reason.startswith(ran)
    conv, relu, step = rows["conv", "forward"], rows["relu", "forward"], rows["small", "step"]
    assert conv.timing and conv.executed_impl == "dense"
    assert conv.selection_reason == "block size 4 exceeds its 3 input channels"
    assert relu.timing and relu.executed_impl == "dense" and "no weights" in relu.selection_reason
    assert step.executed_impl == ("dense" if ran == "dense" else "circulant[block_size=4] (1 of 2 layers)")
    assert step.parameters == (4 * 27 + 2 * 64 * 4 if ran != "dense" else 4 * 27 + 5 * 256)
    assert "conv: block size 4 exceeds" in step.selection_reason


def test_a_bench_selects_by_a_cost_model(store: Store, tmp_path: Path) -> None:
    rows = selected(store, tmp_path, "model", "eliminated[keep=0.5]")
    assert "predicted by the cost model of eliminated from peaks of test" in rows["fc", "forward"].selection_reason


def test_a_fused_unit_is_selected_in_the_whole_step_too(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.selected, "selector", lambda *a: FixedTimes(10.0))
    rows = selected(store, tmp_path, "measure", "fused")
    unit = rows["conv + relu", "forward"]
    assert unit.executed_impl == "fused[impl=reference]" and unit.rel_error is not None and unit.rel_error < 1e-5
    assert rows["small", "step"].executed_impl == "fused (1 of 2 layers)"


def test_an_unknown_selection_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'measured' is unknown: did you mean 'measure'"):
        pipeline.bench(SMALL, QUICK, store, cache=tmp_path, select="measured")  # type: ignore[arg-type]


def test_every_implementation_has_a_whole_step(lenet: tuple[LayerRun, ...]) -> None:
    steps = {row.impl: row for row in lenet if row.phase == "step"}
    assert all(row.timing for row in steps.values()) and set(steps) == {*IMPLEMENTATIONS, "dense:fft"}
    circulant = steps["circulant[block_size=4]"]
    assert circulant.executed_impl == "circulant[block_size=4] (4 of 5 layers)" and not circulant.fell_back
    assert circulant.selection_reason == "features.0: block size 4 exceeds its 1 input channels"
    assert circulant.parameters < steps["dense"].parameters == steps["fused"].parameters == 61706
    assert steps["fused"].executed_impl == "fused (4 of 5 layers)"
    assert steps["dense:fft"].executed_impl == "dense:fft (2 of 5 layers)" and not steps["dense:fft"].fell_back
    assert steps["dense"].executed_impl == "dense"


def test_a_step_of_which_nothing_was_converted_is_dense(store: Store, tmp_path: Path) -> None:
    conv = spec.Convolution(name="conv", inputs=("input",), out_channels=4, kernel=3)
    rows = benched(
        network(conv, spec.Activation(name="relu", inputs=("conv",))), store, tmp_path, "circulant[block_size=8]"
    )
    (step,) = [row for row in rows if row.phase == "step"]
    assert step.timing and step.executed_impl == "dense" and step.fell_back
    assert step.selection_reason == "conv: block size 8 exceeds its 3 input channels"


def test_convolutions_of_another_dtype_are_converted_with_a_note(store: Store, tmp_path: Path) -> None:
    def make() -> External:
        return External(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).bfloat16())

    seen: list[object] = []
    asked = QUICK.model_copy(update={"precision": ("bf16", "fp32")})
    this = pipeline.bench(from_external("half", make, (3, 8, 8)), asked, store, cache=tmp_path, watch=seen.append)
    assert {row.precision for row in store.layers(this.id) if row.timing} == {"bf16", "fp32"}
    note = "half: its weights are bfloat16 and are converted to fp32; --precision bf16 measures it as it is"
    assert [event for event in seen if "converted" in str(event)] == [note]
