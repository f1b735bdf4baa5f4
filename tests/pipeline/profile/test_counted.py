"""Counters of a profile: asked for by name, joined phase by phase, refused with a reason."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina import pipeline
from lamina.build import from_zoo
from lamina.build.models import ZOO
from lamina.errors import LaminaError, MissingError, UsageError
from lamina.measure import counters
from lamina.measure.counters import Profiled, Session
from lamina.pipeline.profile.counted import count, range_name
from lamina.record import KernelRun, LayerRun, Run, Timing
from lamina.spec import Phase, Point, Workload
from lamina.store import Store, open_store

METRIC = "sm__inst_executed.avg.per_cycle_active"
TARGET = from_zoo(ZOO["lenet5"])
WORKLOAD = Workload(batch=(2, 4))


def row(layer: str, place: int, batch: int, kernels: int = 2) -> LayerRun:
    return LayerRun(
        *(layer, "linear", place, "forward", "dense", "fp32", "nchw", batch, "GPU"),
        inputs=((batch, 8),),
        output=(batch, 8),
        parameters=0,
        flops=None,
        bytes=None,
        outcome="ok",
        timing=Timing("cupti", "warm", 3.0, 3.0, 3.0, 10, kernels),
    )


def launches(of: LayerRun, *names: str) -> list[KernelRun]:
    fill = KernelRun(of.key, 0, "Memset (Device)", None, None, None, None, 1.0)
    return [fill, *(KernelRun(of.key, i + 1, name, (4, 1, 1), (64, 1, 1), 32, 0, 2.0) for i, name in enumerate(names))]


@pytest.fixture
def store(store_path: Path) -> Store:
    store = open_store(store_path)
    store.begin(Run("r", "profile", "lenet5", "", "2026-01-01T00:00:00+00:00", "f", {}, {"device": "GPU"}))
    for batch in (2, 4):
        rows = [row("fc", 0, batch), row("relu", 1, batch)]
        kernels = [*launches(rows[0], "gemm", "bias"), *launches(rows[1], "clamp")]
        store.add_profile("r", rows, kernels, None)
    return store


def seen(place: int, *names: str) -> list[Profiled]:
    return [
        Profiled(
            range_name(place, Phase.FORWARD), f"void {name}<float>(T1)", (4, 1, 1), (64, 1, 1), {METRIC: (1.5, "")}, 3
        )
        for name in names
    ]


def replay(point: Point) -> list[str]:
    return ["python", str(point.batch)]


@pytest.fixture
def ncu(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """An Nsight Compute that saw exactly the timed kernels; answers the commands it was given."""
    commands: list[list[str]] = []

    def profile(child: Sequence[str], metrics: Sequence[str], **_: Any) -> Session:
        commands.append(list(child))
        return Session((*seen(0, "gemm", "bias"), *seen(1, "clamp")), tuple(child), "none")

    monkeypatch.setattr(counters, "refusal", lambda: None)
    monkeypatch.setattr(counters, "profile", profile)
    return commands


def counted(store: Store, watch: Any = lambda event: None) -> list[str]:
    return count(TARGET, WORKLOAD, store, "r", [METRIC], replay, watch)


def test_every_kernel_of_every_point_gets_its_counters(store: Store, ncu: list[list[str]]) -> None:
    assert counted(store) == []
    assert ncu == [["python", "2"], ["python", "4"]]
    found = {(one.key.layer, one.key.batch, one.invocation): one.value for one in store.counters("r", metric=METRIC)}
    assert found == {("fc", b, i): 1.5 for b in (2, 4) for i in (1, 2)} | {("relu", b, 1): 1.5 for b in (2, 4)}


def test_what_has_counters_is_not_read_again(store: Store, ncu: list[list[str]]) -> None:
    counted(store)
    counted(store)
    assert len(ncu) == 2


def test_other_kernels_than_the_timed_ones_are_refused_with_the_difference(
    store: Store, ncu: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Session((*seen(0, "gemm_other", "bias"), *seen(1, "clamp")), (), "none")
    monkeypatch.setattr(counters, "profile", lambda *_, **__: other)
    short = counted(store)
    assert len(short) == 2
    assert "refused for fc forward (batch 2, fp32)" in short[0] and "gemm_other" in short[0]
    assert {one.key.layer for one in store.counters("r", metric=METRIC)} == {"relu"}


def test_without_permission_the_times_stay_and_the_reason_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Session:
        raise MissingError("expected permission to read hardware counters, got none")

    said: list[object] = []
    monkeypatch.setattr(counters, "refusal", lambda: None)
    monkeypatch.setattr(counters, "profile", refused)
    (short,) = counted(store, said.append)
    assert "times only" in short and "permission" in short and short in said
    assert store.counters("r") == ()


def test_without_the_tool_nothing_is_started(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "refusal", lambda: "Nsight Compute (ncu) is not installed")
    monkeypatch.setattr(counters, "profile", lambda *_, **__: pytest.fail("started"))
    (short,) = counted(store)
    assert "not installed" in short


def test_a_failing_program_is_an_error_and_what_was_stored_stays(
    store: Store, ncu: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = counters.profile

    def second_fails(child: Sequence[str], metrics: Sequence[str], **options: Any) -> Session:
        if child[-1] == "4":
            raise LaminaError("the profiled program failed with code 1")
        return real(child, metrics, **options)

    monkeypatch.setattr(counters, "profile", second_fails)
    with pytest.raises(LaminaError, match="failed with code 1"):
        counted(store)
    assert {one.key.batch for one in store.counters("r", metric=METRIC)} == {2}


def test_rows_without_kernels_have_nothing_to_count(store_path: Path, ncu: list[list[str]]) -> None:
    store = open_store(store_path)
    store.begin(Run("r", "profile", "lenet5", "", "2026-01-01T00:00:00+00:00", "f", {}, {}))
    store.add("r", replace(row("fc", 0, 2), timing=Timing("cpu", "-", 3.0, 3.0, 3.0, 10)))
    assert counted(store) == [] and ncu == []


def test_metrics_go_by_the_names_of_sets_or_their_own() -> None:
    assert pipeline.metrics(["none"]) == ()
    assert METRIC in pipeline.metrics(["core"])
    assert pipeline.metrics(["dram__sectors_read.sum"]) == ("dram__sectors_read.sum",)
    with pytest.raises(UsageError, match="unknown metric or set 'cores'"):
        pipeline.metrics(["cores"])
