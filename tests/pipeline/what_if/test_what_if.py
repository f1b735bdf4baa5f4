"""what-if: changes executed beside their predictions, checked, stored, and taken up again."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina import measure, pipeline
from lamina.build import Target
from lamina.cli.again import Again
from lamina.cli.what_if import print_what_ifs
from lamina.errors import CheckError, LaminaError, UsageError
from lamina.explain.misses import miss
from lamina.pipeline import Options
from lamina.pipeline.profile.point import Profiled, profile_point
from lamina.pipeline.watch import Stage as Progress
from lamina.pipeline.what_if import CHANGES, fusions, said, swaps, what_if
from lamina.pipeline.what_if import changes as moves
from lamina.record import Roofs, Run, Timing, WhatIf
from lamina.spec import Input, Method, Workload
from lamina.store import Store


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 1))
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(27, 8), nn.Tanh(), nn.Linear(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).flatten(1))
        return logits


SMALL = Target("small", (Input(shape=(2, 6, 6)),), lambda classes: Small(), classes=5)
QUICK = Workload(repeat=1, batch=(2,))


@pytest.fixture(autouse=True)
def known_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    roofs = Roofs(
        "test", "2026-01-01", 1, {"torch": torch.__version__}, 10.0, 8.0, {"fp32": 9.0, "bf16": 9.0}, 5.0, 5.0
    )
    monkeypatch.setattr(measure, "roofs", lambda device, cache_dir, refresh=False: roofs)


def execute(store: Store, cache: Path, target: Target = SMALL, **settings: Any) -> tuple[Run, tuple[WhatIf, ...]]:
    this = what_if(target, settings.pop("workload", QUICK), store, cache=cache, **settings)
    return this, store.what_ifs(this.id)


def test_fusion_is_executed_by_part_and_for_the_whole_step(store: Store, tmp_path: Path) -> None:
    this, found = execute(store, tmp_path, changes=["fusion"])
    assert this.verb == "what-if" and this.status == "done"
    parts = {(one.layer, one.phase): one for one in found if one.layer != "small"}
    assert {*parts} == {(layer, phase) for layer in ("features.0", "head.1") for phase in ("forward", "step")}
    assert parts["features.0", "step"].detail == "convolution + bias + relu + max pooling by plain torch"
    assert parts["head.1", "step"].detail == "linear + bias + tanh by plain torch"
    for one in parts.values():
        assert one.after is not None and one.rel_error is not None and one.rel_error < 1e-5
        assert one.predicted_us is not None and 0 < one.predicted_us <= one.before.median_us
    whole = {one.detail: one for one in found if one.layer == "small"}
    assert {*whole} == {"2 runs of layers by plain torch", "2 runs of layers by the fastest way of each"}
    assert whole["2 runs of layers by plain torch"].after is not None
    # The measured rows are beside the what-ifs.
    assert {row.phase for row in store.layers(this.id)} >= {"forward", "step"}


def test_activations_are_removed_everywhere_and_nothing_is_compared(store: Store, tmp_path: Path) -> None:
    _, (one,) = execute(store, tmp_path, changes=["without_activations"])
    assert one.layer == "small" and one.phase == "step" and one.after is not None and one.rel_error is None
    assert "2 of" not in one.reason
    assert one.predicted_us is not None and one.predicted_us < one.before.median_us


@pytest.mark.parametrize(
    ("change", "said"), [("l1_bypass", "needs a GPU"), ("cuda_graph", "needs a GPU"), ("precision", "tensor cores")]
)
def test_what_needs_a_gpu_says_so(store: Store, tmp_path: Path, change: str, said: str) -> None:
    _, found = execute(store, tmp_path, changes=[change])
    (refused,) = [one for one in found if one.after is None]
    assert said in refused.reason and refused.layer == "small" and refused.predicted_us is None


def test_other_points_are_measured_phase_by_phase(store: Store, tmp_path: Path) -> None:
    _, found = execute(store, tmp_path, changes=["channels_last", "precision"])
    executed = {(one.change, one.detail) for one in found if one.after}
    assert executed == {("channels_last", "nchw -> nhwc"), ("precision", "fp32 -> bf16")}
    phases = {(one.layer, one.phase) for one in found if one.change == "channels_last"}
    assert {("features.0", "forward"), ("features.3", "backward_data"), ("head.3", "backward_weight")} <= phases
    assert ("small", "step") in phases
    narrow = next(one for one in found if (one.layer, one.phase, one.detail) == ("head.1", "forward", "fp32 -> bf16"))
    assert narrow.rel_error is not None and 1e-4 < narrow.rel_error < 4e-2


def test_other_algorithms_are_tried_on_convolutions_alone(store: Store, tmp_path: Path) -> None:
    _, found = execute(store, tmp_path, changes=["algorithm"])
    tried = {(one.layer, one.detail): one for one in found if one.phase == "forward"}
    assert {layer for layer, _ in tried} == {"features.0", "features.3"}
    assert tried["features.0", "dense -> dense:fft"].after is not None
    assert "needs a kernel of 3" in tried["features.3", "dense -> dense:winograd"].reason
    assert next(one for one in found if one.layer == "small").reason.startswith("needs a GPU")


def test_equal_layers_are_measured_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3)), nn.Conv2d(2, 2, 1), nn.Flatten())
    target = Target("equal", (Input(shape=(2, 4, 4)),), lambda classes: layers, classes=32)
    timed: list[str] = []
    time_each = measure.time_each

    def counted(clock: Any, calls: Any, **settings: Any) -> Any:
        timed.extend(map(str, calls))
        return time_each(clock, calls, **settings)

    monkeypatch.setattr(measure, "time_each", counted)
    profile = pipeline.profile(target, QUICK, store, cache=tmp_path)
    timed.clear()
    _, found = execute(store, tmp_path, target, changes=["algorithm"], profile=profile.id)
    tried = [one for one in found if one.phase == "forward"]
    assert len(tried) == 12 and len([one for one in tried if one.after]) == 3 * 3 + 2
    # The first convolution has another phase: no gradient of the input is needed. Two phases of three kinds of layer
    # as they are; by three algorithms, of which the last layer supports two.
    assert len(timed) == 2 * 3 + 2 * (3 + 3 + 2)
    equal = {one.layer: (one.before, one.after, one.rel_error) for one in tried if one.detail.endswith("gemm")}
    assert equal["1"] == equal["2"] != equal["0"]


def test_parts_that_cannot_be_timed_together_are_timed_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_parts = swaps.time_parts

    def alone(parts: Any, *more: Any) -> Any:
        if len(parts) > 1:
            raise TypeError("one of them fails in the profiler")
        return time_parts(parts, *more)

    monkeypatch.setattr(sys.modules["lamina.pipeline.what_if.stage"], "time_parts", alone)
    _, found = execute(store, tmp_path, changes=["algorithm"])
    assert {one.layer for one in found if one.after} == {"features.0", "features.3"}


def test_progress_counts_changes_and_their_parts(store: Store, tmp_path: Path) -> None:
    events: list[Any] = []
    execute(store, tmp_path, changes=["fusion", "algorithm"], watch=events.append)
    stages = [event for event in events if isinstance(event, Progress)]
    assert [(stage.done, stage.total) for stage in stages] == [(0, 2), (0, 2), (0.5, 2), (1, 2), (1, 2), (1.5, 2)]
    assert {stage.name for stage in stages} == {"small: changes at dense fp32 nchw batch 2"}


def test_a_second_process_measures_the_same_rows_in_another_way(tmp_path: Path) -> None:
    point = next(QUICK.points())
    again = Again("lenet5", QUICK.model_copy(update={"device": "cpu", "check": False}), Options(), (), "")
    stage: Any = SimpleNamespace(point=point, base=SimpleNamespace(roofs=None))
    found = moves._profiled_elsewhere(stage, again.profile, Options(autotune=True))
    assert {(row.layer, row.phase) for row in found.rows} >= {("lenet5", "step")} and len(found.rows) > 20
    with pytest.raises(LaminaError, match="a subprocess failed with code 2"):
        moves._profiled_elsewhere(stage, lambda *_: [sys.executable, "-m", "lamina", "profile", "--nothing"], Options())


def test_a_wrong_result_is_not_timed(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = nn.Sequential(nn.Linear(27, 8), nn.Sigmoid())
    monkeypatch.setattr(fusions, "_fusers", lambda stage, module, only=None: {"guessing": lambda: wrong})
    _, found = execute(store, tmp_path, changes=["fusion"])
    refused = next(one for one in found if one.layer == "head.1")
    assert refused.after is None and "differs from float64" in refused.reason


def test_a_change_that_breaks_leaves_the_others(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stage: object) -> Any:
        raise RuntimeError("no memory")
        yield

    monkeypatch.setitem(CHANGES, "channels_last", broken)  # type: ignore[arg-type]
    this, found = execute(store, tmp_path, changes=["channels_last", "without_activations"])
    assert this.status == "done"
    assert [(one.change, one.reason) for one in found] == [("channels_last", "no memory"), ("without_activations", "")]


def test_an_interrupted_run_goes_on_where_it_was(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(event: object) -> None:
        if str(event).startswith("fusion: head.1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(store, tmp_path, changes=["fusion"], watch=interrupt)
    before = store.what_ifs(store.run("latest").id)
    assert before
    profiled = []
    monkeypatch.setattr(sys.modules["lamina.pipeline.what_if"], "profile_point", lambda *_: profiled.append(1))
    this, found = execute(store, tmp_path, changes=["fusion"], resume=True)
    assert found[: len(before)] == before and len(found) == 6 and not profiled
    _, again = execute(store, tmp_path, changes=["fusion"], resume=False, profile=this.id)
    assert len(again) == 6 and not profiled


def test_a_profile_is_what_predictions_start_from(store: Store, tmp_path: Path) -> None:
    profile = pipeline.profile(SMALL, QUICK, store, cache=tmp_path)
    this, _ = execute(store, tmp_path, changes=["without_activations"], profile=profile.id)
    assert store.layers(this.id) == store.layers(profile.id) and this.config["profile"] == profile.id


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"changes": ["fussion"]}, "did you mean 'fusion'"),
        ({"workload": Workload(impl=(Method("circulant"),))}, "changes dense networks"),
    ],
)
def test_what_makes_no_sense_is_refused(store: Store, tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        execute(store, tmp_path, **settings)


def test_a_profile_of_another_network_is_refused(store: Store, tmp_path: Path) -> None:
    profile = pipeline.profile(SMALL, QUICK, store, cache=tmp_path)
    other = Target("other", SMALL.inputs, SMALL.make, classes=5)
    with pytest.raises(UsageError, match="expected a profile of other, got profile of small"):
        execute(store, tmp_path, other, profile=profile.id)


def test_a_network_without_anything_to_change_says_so(store: Store, tmp_path: Path) -> None:
    bare = Target("bare", (Input(shape=(4,)),), lambda classes: nn.Sequential(nn.Linear(4, 3)), classes=3)
    _, found = execute(store, tmp_path, bare, changes=["fusion", "without_activations", "algorithm"])
    assert [one.reason for one in found] == [
        "no Linear or Conv2d is followed by its activation in a Sequential",
        "it has no activations",
        "none of its layers is a convolution",
    ]


def test_accuracy_grants_what_plain_torch_needs_and_no_more() -> None:
    exact, plain = [torch.ones(4).double()], [torch.full((4,), 1.1)]
    assert swaps.accuracy([torch.full((4,), 1.15)], plain, exact, "fp32") == pytest.approx(0.15, rel=1e-5)
    with pytest.raises(CheckError, match="not timed"):
        swaps.accuracy([torch.full((4,), 1.3)], plain, exact, "fp32")
    with pytest.raises(CheckError):
        swaps.accuracy([torch.full((4,), float("nan"))], plain, exact, "fp32")


def test_a_what_if_is_told_in_words(store: Store, tmp_path: Path) -> None:
    _, (one,) = execute(store, tmp_path, changes=["without_activations"])
    told = said(replace(one, predicted_us=one.before.median_us / 2))
    assert told.startswith("without_activations: small step, activations removed: ") and "predicted +100.0%" in told
    assert "predicted" not in said(replace(one, predicted_us=None))


def impl(text: str) -> Method:
    return Method.parse(text)


@pytest.mark.parametrize(
    ("method", "layers", "rule"),
    [
        ("circulant[block_size=2]", {"features.0", "head.1", "head.3"}, "roofline of"),
        ("sparse", {"features.0", "features.3", "head.1", "head.3"}, "roofline of"),
        ("eliminated[keep=0.5]", {"features.0", "features.3", "head.1", "head.3"}, "cost model of eliminated"),
        ("weight-only", {"features.0", "features.3", "head.1", "head.3"}, "no cost model (weight-only layers do not"),
        ("fused", {"features.0", "head.1"}, "roofline of"),
        ("dense:gemm", {"features.0", "features.3"}, "stages of gemm"),
    ],
)
def test_layers_run_by_another_implementation_beside_its_prediction(
    store: Store, tmp_path: Path, method: str, layers: set[str], rule: str
) -> None:
    this, found = execute(store, tmp_path, changes=[], impls=[impl(method)])
    assert this.config["impls"] == [method] and {one.change for one in found} == {"impl"}
    parts = {(one.layer, one.phase): one for one in found if one.layer != "small"}
    assert {layer for layer, _ in parts} >= layers and {phase for _, phase in parts} == {"forward", "step"}
    for one in parts.values():
        assert one.detail == f"dense -> {method}" and one.after is not None, one.reason
        assert one.rel_error is not None and one.rel_error < 1e-5 and one.predicted_us is not None
    assert all(rule in parts[layer, "step"].rule for layer in layers)
    (whole,) = [one for one in found if one.layer == "small" and one.after]
    count = len({layer for layer, _ in parts})
    assert whole.detail == f"dense -> {method} in {count} layers" and whole.predicted_us is not None
    assert whole.rule == f"{count} of {count} layers as predicted one by one, the rest as it is"


def test_layers_that_a_method_refuses_are_listed_with_the_reason(store: Store, tmp_path: Path) -> None:
    _, found = execute(store, tmp_path, changes=[], impls=[impl("circulant[block_size=8]")])
    refused = {one.detail: one.reason for one in found if one.after is None}
    assert refused["dense -> circulant[block_size=8]: features.0"] == "block size 8 exceeds its 2 input channels"
    with pytest.raises(UsageError, match="dense is what the network is"):
        execute(store, tmp_path, changes=[], impls=[Method()])


def test_tied_weights_stay_tied(store: Store, tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    layers[1].weight = layers[0].weight
    tied = Target("tied", (Input(shape=(4,)),), lambda classes: layers, classes=4)
    _, found = execute(store, tmp_path, tied, changes=[], impls=[impl("circulant[block_size=2]")])
    refused = {one.detail.rpartition(": ")[2]: one.reason for one in found if one.after is None}
    assert refused == dict.fromkeys("01", "its weights are shared with another layer")
    assert {one.layer for one in found if one.after} == {"2", "tied"}


def test_selected_layers_alone_are_changed(store: Store, tmp_path: Path) -> None:
    workload = QUICK.model_copy(update={"layers": ("head.*",)})
    changes = ["fusion", "without_activations", "channels_last", "algorithm"]
    this, found = execute(store, tmp_path, workload=workload, changes=changes, impls=[impl("eliminated")])
    assert {one.layer for one in found} == {"small", "head.0", "head.1", "head.2", "head.3"}
    assert {one.reason for one in found if one.change == "algorithm"} == {"none of its layers is a convolution"}
    assert [one.detail for one in found if one.change == "impl" and one.layer == "small"] == [
        "dense -> eliminated in 2 layers"
    ]
    # The whole network is the baseline.
    assert {row.layer for row in store.layers(this.id)} >= {"features.0", "head.1", "small"}


class Custom(nn.Module):
    """A layer that no description covers: it has neither FLOPs nor bytes."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x).detach() + x


def test_layers_without_costs_and_without_kernels_go_through_every_change(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_gpu(*arguments: Any) -> Profiled:
        """Times as CUPTI has them: a layer that launches no kernel takes none."""
        found = profile_point(*arguments)
        rows = [
            replace(row, timing=Timing("cupti", "warm", 0.0, 0.0, 0.0, 1, 0), flops=None, bytes=None)
            if row.layer.startswith("0") and row.timing
            else row
            for row in found.rows
        ]
        return replace(found, rows=tuple(rows))

    for module in ("lamina.pipeline.what_if", "lamina.pipeline.what_if.stage"):
        monkeypatch.setattr(sys.modules[module], "profile_point", on_a_gpu)
    layers = nn.Sequential(Custom(), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten())
    bare = Target("bare", (Input(shape=(2, 4, 4)),), lambda classes: layers, classes=12)
    told: list[str] = []
    this, found = execute(store, tmp_path, bare, watch=lambda event: told.append(str(event)))
    assert this.status == "done" and {one.change for one in found} == {*CHANGES}
    (moved,) = [one for one in found if (one.layer, one.phase, one.change) == ("0", "forward", "channels_last")]
    assert moved.measured_gain is None and moved.predicted_us is None and miss(moved).startswith("no kernel ran")
    assert "channels_last: 0 forward, nchw -> nhwc: 0.0 -> 0.0 us" in told
    for form in ("table", "json", "csv"):
        print_what_ifs(this, found, form)
    pipeline.report(store, this.id, tmp_path / "report.html")


@pytest.mark.gpu
def test_every_change_is_executed_on_a_gpu(store: Store, tmp_path: Path) -> None:
    _, found = execute(store, tmp_path, workload=Workload(repeat=3, batch=(8,), device="cuda"))
    assert {one.change for one in found} == {*CHANGES}
    fused = [one for one in found if one.change == "fusion" and one.layer == "small"]
    assert {one.detail.rpartition(" by ")[2] for one in fused if one.after} >= {"triton", "torch.compile"}
    for change in ("l1_bypass", "channels_last", "precision", "cuda_graph", "without_activations"):
        assert any(one.after for one in found if one.change == change), change
