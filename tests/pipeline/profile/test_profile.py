"""profile: an iteration's rows and kernels, stored point by point."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina import measure, pipeline
from lamina.build import Target, from_network
from lamina.errors import UsageError
from lamina.measure.attribution import Activity, Attribution
from lamina.pipeline.profile import point as profiled
from lamina.record import Key, Roofs
from lamina.spec import Input, Method, Network, Phase, Workload
from lamina.spec import layers as spec
from lamina.store import Store

QUICK = Workload(repeat=2, batch=(2,))
SMALL = from_network(
    Network(
        name="small",
        inputs=(Input(shape=(3, 8, 8)),),
        layers=(
            spec.Convolution(name="conv", inputs=("input",), out_channels=4, kernel=3, padding=1),
            spec.BatchNorm(name="norm", inputs=("conv",)),
            spec.Activation(name="relu", inputs=("norm",)),
            spec.Linear(name="fc", inputs=("relu",), out_features=5, spatial=True),
        ),
    )
)
TIMED = {
    ("conv", "forward"),
    ("conv", "backward_weight"),
    ("norm", "forward"),
    ("norm", "backward_data"),
    ("relu", "forward"),
    ("relu", "backward_data"),
    ("fc", "forward"),
    ("fc", "backward_data"),
    ("fc", "backward_weight"),
}


@pytest.fixture(autouse=True)
def known_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    roofs = Roofs("test", "2026-01-01", 1, {"torch": torch.__version__}, 10.0, 8.0, {"fp32": 100.0}, 5.0, 5.0)
    monkeypatch.setattr(measure, "roofs", lambda device, cache_dir, refresh=False: roofs)


def run(store: Store, cache: Path, workload: Workload = QUICK, **options: Any) -> Any:
    return pipeline.profile(SMALL, workload, store, cache=cache, **options)


def test_without_a_gpu_there_are_times_and_no_kernels_and_it_says_so(store: Store, tmp_path: Path) -> None:
    said: list[object] = []
    this = run(store, tmp_path, watch=said.append)
    rows = store.layers(this.id)
    assert this.status == "done" and this.verb == "profile"
    assert {(row.layer, row.phase) for row in rows if row.timing} == TIMED | {("small", "step")}
    assert {row.timing.clock for row in rows if row.timing} == {"cpu"}
    assert all(row.timing.n == 2 for row in rows if row.timing and row.phase != "step")
    assert store.kernels(this.id) == () and store.coverages(this.id) == ()
    assert any("no GPU" in str(event) for event in said)


def test_a_phase_that_does_not_run_apart_is_skipped_with_its_reason(store: Store, tmp_path: Path) -> None:
    rows = store.layers(run(store, tmp_path).id)
    skipped = {(row.layer, row.phase): row.reason for row in rows if row.outcome == "skipped"}
    assert skipped == {
        ("conv", "backward_data"): "its input needs no gradient",
        ("norm", "backward_weight"): "computed by the same kernels as backward_data",
    }


def test_every_phase_is_compared_with_float64(store: Store, tmp_path: Path) -> None:
    rows = store.layers(run(store, tmp_path).id)
    assert all(row.rel_error is not None and row.rel_error < 1e-5 for row in rows if row.timing and row.phase != "step")


def test_selected_layers_alone_get_rows_and_the_method(store: Store, tmp_path: Path) -> None:
    method = Method("circulant", options=(("block_size", 2),))
    workload = QUICK.model_copy(update={"layers": ("co*", "norm"), "impl": (method,)})
    rows = store.layers(run(store, tmp_path, workload).id)
    timed = {(row.layer, row.phase) for row in rows if row.timing}
    assert timed == {(layer, phase) for layer, phase in TIMED if layer in ("conv", "norm")}
    assert {(row.layer, row.impl, row.executed_impl) for row in rows if row.timing} == {
        ("conv", "circulant[block_size=2]", "circulant[block_size=2,impl=reference]"),
        ("norm", "circulant[block_size=2]", "dense"),
    }
    with pytest.raises(UsageError, match="'conf' matches no layer: did you mean 'conv'"):
        run(store, tmp_path, QUICK.model_copy(update={"layers": ("conf",)}))


def test_inference_is_forward_only(store: Store, tmp_path: Path) -> None:
    workload = QUICK.model_copy(update={"phases": (Phase.FORWARD,)})
    rows = store.layers(run(store, tmp_path, workload, options=pipeline.Options(training=False)).id)
    assert {row.phase for row in rows} == {"forward", "step"}


def test_every_batch_size_is_a_point_and_a_resumed_run_does_the_rest(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = QUICK.model_copy(update={"batch": (1, 2, 3)})
    real, seen = profiled.iteration_of, []

    def stopped(*arguments: Any) -> Any:
        seen.append(arguments[2].batch)
        if arguments[2].batch == 2 and len(seen) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(profiled, "iteration_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(store, tmp_path, workload)
    (first,) = store.runs()
    assert first.status == "interrupted" and {row.batch for row in store.layers(first.id)} == {1}
    this = run(store, tmp_path, workload, resume=True)
    assert this.id == first.id and this.status == "done"
    assert seen == [1, 2, 2, 3]
    assert {row.batch for row in store.layers(this.id)} == {1, 2, 3}


def test_a_network_that_cannot_run_is_a_failed_row_and_the_next_point_goes_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = profiled.iteration_of

    def broken(target: Target, point: Any, network: Any, *more: Any) -> Any:
        if network.batch == 1:
            raise RuntimeError("out of memory")
        return real(target, point, network, *more)

    monkeypatch.setattr(profiled, "iteration_of", broken)
    rows = store.layers(run(store, tmp_path, QUICK.model_copy(update={"batch": (1, 2)})).id)
    assert [(row.layer, row.reason) for row in rows if row.batch == 1] == [("small", "out of memory")]
    assert {(row.layer, row.phase) for row in rows if row.batch == 2 and row.timing} > TIMED


def test_layers_that_a_method_cannot_replace_run_dense_and_say_so(store: Store, tmp_path: Path) -> None:
    methods = tuple(Method.parse(text) for text in ("circulant[block_size=4]", "fused"))
    rows = store.layers(run(store, tmp_path, QUICK.model_copy(update={"impl": methods})).id)
    timed = {(row.impl, row.layer, row.phase): row for row in rows if row.timing}
    relu = timed["circulant[block_size=4]", "relu", "forward"]
    assert (relu.executed_impl, relu.fell_back) == ("dense", True) and "ReLU has no weights" in relu.selection_reason
    assert timed["circulant[block_size=4]", "fc", "forward"].executed_impl.startswith("circulant[block_size=4")
    assert timed["circulant[block_size=4]", "small", "step"].executed_impl.startswith("circulant[block_size=4] (1 of")
    assert {row.executed_impl for row in rows if row.impl == "fused" and row.timing} == {"dense"}, "no ReLU follows"
    assert all(row.executed_impl == "" for row in rows if not row.timing)


def test_fused_layers_are_profiled_as_one(store: Store, tmp_path: Path) -> None:
    layers = (
        spec.Convolution(name="conv", inputs=("input",), out_channels=4, kernel=3),
        spec.Activation(name="relu", inputs=("conv",)),
        spec.Linear(name="fc", inputs=("relu",), out_features=5, spatial=True),
    )
    target = from_network(Network(name="two", inputs=(Input(shape=(3, 8, 8)),), layers=layers))
    workload = QUICK.model_copy(update={"impl": (Method("fused"),)})
    rows = store.layers(pipeline.profile(target, workload, store, cache=tmp_path).id)
    ran = {
        (row.layer, row.place, row.phase): row.executed_impl for row in rows if row.timing and row.phase == "forward"
    }
    assert {name[:2] for name in ran} == {("conv + relu", 0), ("fc", 2)}
    assert ran["conv + relu", 0, "forward"].startswith("fused") and ran["fc", 2, "forward"] == "dense"


class Session:
    """Answers for every range two kernels and a fill, and one stray for each session."""

    def __init__(self) -> None:
        self.keys: list[Any] = []

    @contextmanager
    def range(self, key: Any) -> Iterator[None]:
        self.keys.append(key)
        yield

    @property
    def attribution(self) -> Attribution[Any]:
        homes = {}
        for key in self.keys:
            (place, _), repetition = key
            homes[key] = (
                Activity(1, f"gemm{place}", 0, 10_000 + repetition, (8, 1, 1), (128, 1, 1), 40, 1024),
                Activity(2, "Memset (Device)", 0, 1_000),
            )
        return Attribution(homes, (Activity(3, "between", 0, 4_000),), (Activity(4, "lost", 0, 2_000),), ())


class Memory:
    def __init__(self, _: object) -> None:
        self.peak_bytes: dict[Any, int] = {}
        self.live_bytes: dict[Any, int] = {}

    @contextmanager
    def range(self, key: Any) -> Iterator[None]:
        yield
        self.peak_bytes[key], self.live_bytes[key] = 200, 100


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Sequence[Session]:
    """A machine whose CPU passes for a GPU."""
    sessions: list[Session] = []

    @contextmanager
    def record(_: object) -> Iterator[Session]:
        sessions.append(Session())
        yield sessions[-1]

    real = profiled._on_gpu
    monkeypatch.setattr(measure, "record_kernels", record)
    monkeypatch.setattr(measure, "MemoryUse", Memory)
    monkeypatch.setattr(
        profiled,
        "_on_cpu",
        lambda iteration, rows, n: real(
            iteration,
            rows,
            lambda place, phase: next(iter(rows.values())) if (place, phase) not in rows else rows[place, phase],
            n,
            torch.device("cpu"),
            lambda _: None,
        ),
    )
    return sessions


def test_on_a_gpu_every_kernel_has_a_row_and_the_rest_is_listed(
    store: Store, tmp_path: Path, card: Sequence[Session]
) -> None:
    this = run(store, tmp_path)
    assert len(card) == 1
    rows = {row.key: row for row in store.layers(this.id) if row.timing and row.phase != "step"}
    kernels = store.kernels(this.id)
    assert {one.key for one in kernels} == set(rows)
    assert len(kernels) == 2 * len(TIMED)
    conv = Key("conv", "forward", "dense", "fp32", "nchw", 2)
    assert [(one.invocation, one.name, one.grid) for one in kernels if one.key == conv] == [
        (0, "gemm0", (8, 1, 1)),
        (1, "Memset (Device)", None),
    ]
    timing = rows[conv].timing
    assert timing is not None and (timing.clock, timing.kernels, timing.n) == ("cupti", 2, 2)
    assert timing.median_us == pytest.approx(11.0005)
    assert (rows[conv].peak_bytes, rows[conv].live_bytes) == (200, 100)
    (coverage,) = store.coverages(this.id)
    assert coverage.strays == {"between": 2.0, "lost": 1.0}
    assert coverage.kernels == len(kernels)
    assert coverage.attributed_us == pytest.approx(sum(row.timing.median_us for row in rows.values() if row.timing))
    assert coverage.share == pytest.approx(coverage.attributed_us / (coverage.attributed_us + 3))


@pytest.mark.gpu
def test_a_real_profile_brings_every_kernel_home(store: Store, tmp_path: Path) -> None:
    this = run(store, tmp_path, QUICK.model_copy(update={"device": "cuda", "repeat": 5}))
    rows = {row.key: row for row in store.layers(this.id) if row.timing and row.phase != "step"}
    (coverage,) = store.coverages(this.id)
    assert coverage.share > 0.99
    assert {(key.layer, key.phase) for key in rows} >= TIMED
    for key, row in rows.items():
        mine = [one for one in store.kernels(this.id) if one.key == key]
        assert row.timing is not None and len(mine) == row.timing.kernels
        assert sum(one.duration_us for one in mine) == pytest.approx(row.timing.median_us, rel=0.2)
        assert row.peak_bytes is not None and row.live_bytes is not None and row.peak_bytes >= row.live_bytes > 0


def test_the_energy_of_each_phase_is_measured_where_there_is_a_counter(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    how = pipeline.Options(energy_s=0.001, detail_batch=(2,))
    rows = store.layers(run(store, tmp_path, options=how, watch=said.append).id)
    assert {row.energy_j for row in rows} == {None}
    assert "no energy counter: a CPU; the energy of layers is not measured" in said

    class Meter(measure.EnergyMeter):
        refusal = ""

        def per_call_j(self, fn: Any, *, captured: bool = True) -> float:
            fn()
            if captured:
                if len(calls) == 2:
                    calls.append(0.0)
                    raise RuntimeError("out of memory\nand more")
                calls.append(0.5)
            return 0.5 if captured else 7.0

    calls: list[float] = []
    monkeypatch.setattr(measure, "EnergyMeter", Meter)
    workload = QUICK.model_copy(update={"batch": (1, 2)})
    rows = store.layers(run(store, tmp_path, workload, options=how, watch=said.append).id)
    assert {row.energy_j for row in rows if row.batch == 1} == {None}
    known = {(row.layer, row.phase): row.energy_j for row in rows if row.batch == 2 and row.timing}
    assert known.pop(("small", "step")) == 7.0 and known.keys() == TIMED
    (lost,) = [at for at, joules in known.items() if joules is None]
    assert set(known.values()) == {0.5, None}
    assert f"no energy of {lost[0]} {lost[1]}: out of memory and more" in said
