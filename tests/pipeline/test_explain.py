from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.explain.recorded import H200, recorded, whole
from tests.report.records import run as report_run

from lamina.errors import UsageError
from lamina.pipeline.explain import compare_counters, compare_kernels, compare_layers, explain, look_up
from lamina.record import Counter, KernelRun, LayerRun
from lamina.store import Store, open_store


def keep(store: Store, run_id: str, rows: list[LayerRun], kernels: list[KernelRun], counters: list[Counter]) -> None:
    store.begin(replace(report_run(), id=run_id, verb="profile"))
    for row in rows:
        store.add(run_id, row)
    store.add_roofs(run_id, H200)
    store.add_kernels(run_id, kernels)
    store.add_counters(run_id, counters)


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        rows, kernels, counters = recorded()
        keep(opened, "counted", [*rows, whole(4000.0, rows)], kernels, counters)
        keep(opened, "timed", rows, [], [])
        yield opened


def test_a_stored_run_is_explained_as_its_records_are(store: Store) -> None:
    found = explain(store, "counted")
    rules = {it.rule for it in found.findings}
    assert {"bottlenecks", "warp stalls", "layout conversions", "tensor cores idle", "launch overhead"} <= rules
    assert found.run.id == "counted" and "20%" in next(
        it.claim for it in found.findings if it.rule == "launch overhead"
    )
    assert "warp stalls" not in {it.rule for it in explain(store, "timed").findings}


def test_one_layer(store: Store) -> None:
    found = explain(store, "counted", "features.0")
    assert {it.layer for it in found.findings} == {"features.0"} == {it.layer for it in found.paragraphs}
    with pytest.raises(UsageError, match=r"no layer 'features.00'; did you mean 'features.0'"):
        explain(store, "counted", "features.00")


def test_sides_are_compared_by_layer_kernel_and_counter(store: Store) -> None:
    a = look_up(store, "counted")
    assert {it.verdict for it in compare_layers(a, a)} == {"same"}
    assert {it.change for it in compare_kernels(a, a)} == {"same"}
    (hit,) = compare_counters(a, a, "features.1", ["lts__t_sector_hit_rate.pct"])
    assert hit.a == hit.b == pytest.approx(49.02)
    assert {it.layer for it in compare_layers(a, look_up(store, "timed"), "features.3")} == {"features.3"}


def test_missing_kernels_and_counters_are_reported(store: Store) -> None:
    a, b = look_up(store, "counted"), look_up(store, "timed")
    with pytest.raises(UsageError, match="run timed has no kernels"):
        compare_kernels(a, b)
    with pytest.raises(UsageError, match="run timed has no counters"):
        compare_counters(a, b)
    with pytest.raises(UsageError, match="'no' was not counted"):
        compare_counters(a, a, metrics=["no"])
    with pytest.raises(UsageError, match="nothing at batch 7; expected one of: 128"):
        look_up(store, "counted", 7)
    with pytest.raises(UsageError, match="neither run has a layer 'x'"):
        compare_layers(a, b, "x")


def test_a_run_without_layers_is_refused(store: Store) -> None:
    keep(store, "empty", [], [], [])
    with pytest.raises(UsageError, match="it ended before one was measured; see 'lamina runs show empty'"):
        explain(store, "empty")
    store.begin(replace(report_run(), id="trained", verb="train"))
    with pytest.raises(UsageError, match="has no layers: expected one of 'lamina bench'"):
        explain(store, "trained")
