"""A run travels to another database as JSON, whole or not at all."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from lamina.errors import StoreError, UsageError
from lamina.record import (
    Counter,
    Coverage,
    Epoch,
    KernelRun,
    LayerRun,
    Roofs,
    Run,
    SimRun,
    Sparsity,
    Timing,
    WhatIf,
)
from lamina.store import Store, open_store

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]


@pytest.fixture
def document(store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun) -> dict[str, Any]:
    """An exported run with some of everything, as it is after a journey through a JSON file."""
    run = a_run(remarks=("é",), status="done", finished="2026-01-03")
    store.begin(run)
    measured = a_layer_run(rel_error=math.inf)
    launch = KernelRun(measured.key, 0, "k", (7, 2, 1), (128, 1, 1), 96, None, 31.25)
    store.add(run.id, measured)
    store.add_kernels(run.id, [launch, replace(launch, invocation=1, grid=None, block=None)])
    store.add_counters(run.id, [Counter(measured.key, 1, "dram_bytes", None, "byte")])
    store.add_counters(run.id, [Counter(measured.key, 1, "a", math.inf, "%")])
    # From here on a key alone no longer tells which layer the launches belong to.
    store.add(run.id, a_layer_run(inputs=((32, 3, 32, 32),)))
    store.add(run.id, a_layer_run(batch=1, inputs=((1, 3, 224, 224),)))
    store.add(run.id, a_layer_run("fc", place=1, outcome="skipped", timing=None, flops=None))
    store.add_epoch(run.id, Epoch(1, 400, 0.1, math.inf, 0.125, 2.5, 0.0625, 12.5))
    store.add_roofs(run.id, Roofs("a chip", "2026", 2, {"torch": "2"}, 1.0, 2.0, {"fp32": 3.5}, 4.0, 5.0))
    timing = Timing("events", "warm", 10.0, 9.5, math.inf, 20)
    change = ("fusion", "linear + relu", "fc", "forward", "tf32", 32)
    store.add_coverage(run.id, Coverage("dense", "fp32", "nchw", 32, 2, 62.5, {"stray": 1.5}))
    store.add_what_if(run.id, WhatIf(*change, timing, 8.0, "bytes saved", replace(timing, n=21)))
    store.add_what_if(run.id, WhatIf("cuda_graph", *change[1:], timing, None, "", None, reason="no"))
    store.add_sparsity(run.id, [Sparsity("conv1", "output", 100, 0.5, {2: 0.75}, 3)])
    config = {"ways": 4, "on": True, "rate": 1.0, "dram": "hbm"}
    store.add_simulation(run.id, SimRun("conv1", "gemm", "tiny", config, 10**12, {"hits": 7, "rate": 0.5}, True, 0.1))
    loaded: dict[str, Any] = json.loads(json.dumps(store.export_run(run.id), allow_nan=False))
    return loaded


@pytest.fixture
def other() -> Iterator[Store]:
    with open_store(":memory:") as store:
        yield store


def test_a_run_arrives_whole(store: Store, other: Store, document: dict[str, Any]) -> None:
    assert other.import_run(document) == "20260102-abc"
    readers = (
        Store.run, Store.layers, Store.epochs, Store.roofs, Store.kernels, Store.counters, Store.coverages,
        Store.what_ifs, Store.sparsities, Store.simulations,
    )  # fmt: skip
    for read in readers:
        assert read(other, "20260102-abc") == read(store, "20260102-abc")
        assert read(other, "20260102-abc")
    assert len(other.kernels("20260102-abc")) == 2
    dates = "SELECT layer, batch, created FROM layer_table ORDER BY layer, batch, created"
    assert other.query(dates) == store.query(dates)
    owners = (
        "SELECT parameters, inputs FROM counter JOIN kernel ON kernel.id = kernel_id JOIN layer ON layer.id = layer_id"
    )
    assert other.query(owners)[1] == ((23_296, "[[32, 3, 224, 224]]"),) * 2


def test_a_document_from_before_rows_said_what_ran_is_read(other: Store, document: dict[str, Any]) -> None:
    for layer in document["layers"]:
        del layer["executed_impl"], layer["selection_reason"]
    rows = other.layers(other.import_run(document))
    assert {(row.outcome, row.executed_impl, row.selection_reason) for row in rows} == {
        ("ok", "dense", ""),
        ("skipped", "", ""),
    }


def test_a_document_has_all_fields_of_the_records(document: dict[str, Any]) -> None:
    assert document["format"] == 2
    for name, record, more in [
        ("layers", LayerRun, {"created", "layer_id"}), ("epochs", Epoch, set()), ("roofs", Roofs, set()),
        ("coverages", Coverage, set()), ("what_ifs", WhatIf, set()), ("sparsities", Sparsity, set()),
        ("simulations", SimRun, set()),
    ]:  # fmt: skip
        assert document[name][0].keys() == {field.name for field in fields(record)} | more
    launches = document["kernels"][0]
    assert launches.keys() | launches["launches"][0].keys() == {
        "layer_id", "launches", "counters", *(field.name for field in fields(KernelRun)),
    }  # fmt: skip
    assert document["run"].keys() == {field.name for field in fields(Run)}


def test_a_run_is_imported_once(store: Store, document: dict[str, Any]) -> None:
    before = store.export_run("20260102-abc")
    with pytest.raises(UsageError, match="run '20260102-abc' is in this database already"):
        store.import_run(document)
    assert store.export_run("20260102-abc") == before
    store.delete("20260102-abc")
    store.import_run(document)
    assert store.import_run({**document, "run": {**document["run"], "id": "copy"}}) == "copy"


def test_the_least_of_documents(other: Store, document: dict[str, Any]) -> None:
    other.import_run({"format": 1, "run": document["run"]})
    assert other.layers("20260102-abc") == ()


def change(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The document with one value changed, added, or (``...``) taken away."""
    changed: dict[str, Any] = json.loads(json.dumps(document))
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    below: Any = changed
    for part in above:
        below = below[part]
    if value is ...:
        del below[last]
    else:
        below[last] = value
    return changed


FAULTY: list[tuple[str, Any, str]] = [
    ("format", 3, "format: Input should be 1 or 2"),
    ("format", ..., "format: "),
    ("run", ..., "run: "),
    ("run.id", 7, "run.id: Input should be a valid string"),
    ("run.status", "gone", "run.status: Input should be 'running'"),
    ("layers.0.median", 1.0, "layers.0.median: Unexpected keyword"),
    ("future", [], "future: Unexpected keyword"),
    ("layers.0.kind", ..., "layers.0.kind: "),
    ("layers.0.timing.n", "many", "layers.0.timing.n: Input should be a valid integer"),
    ("layers.0.inputs", [["wide"]], "layers.0.inputs.0.0: "),
    ("layers.0.created", ..., "layers.0.created: "),
    ("kernels.0.layer_id", 77, "no layer has layer_id 77 and key conv1 forward dense fp32 nchw 32"),
    ("kernels.0.key.0", "fc", "no layer has layer_id 1 and key fc forward dense fp32 nchw 32"),
    ("kernels.0.key.3", "bf16", "no layer has layer_id 1 and key conv1 forward dense bf16 nchw 32"),
    ("kernels.0.key", ["conv1"], "kernels.0.key.1: "),
    ("kernels.0.launches.0.grid", [1, 2], "kernels.0.launches.0.grid.2: "),
    ("kernels.0.launches.1.counters.0", ["a", 1.0], "kernels.0.launches.1.counters.0.2: "),
    ("layers", {"a": 1}, "layers: "),
]


def test_what_is_no_exported_run_is_refused_whole(other: Store, document: dict[str, Any]) -> None:
    for path, value, told in FAULTY:
        with pytest.raises(UsageError, match=r"expected a run as lamina exports it \(format 2\), got: ") as caught:
            other.import_run(change(document, path, value))
        assert told in str(caught.value)
        assert other.runs() == (), path


@pytest.mark.parametrize("document", [{}, {"runs": []}, [], "run", None, 7])
def test_anything_but_a_document_is_refused(other: Store, document: Any) -> None:
    with pytest.raises(UsageError, match="expected a run as lamina exports it"):
        other.import_run(document)


def test_a_fault_found_late_leaves_nothing_behind(other: Store, document: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected a run as lamina exports it .* rel_error cannot be stored: NaN"):
        other.import_run(change(document, "layers.0.rel_error", "NaN"))
    with pytest.raises(StoreError, match="has one of these kernel launches already"):
        other.import_run(change(document, "kernels.0.launches.1.invocation", 0))
    again = document["simulations"][0]
    with pytest.raises(StoreError, match="has gemm of conv1 on tiny with this configuration already"):
        other.import_run(change(document, "simulations", [again, again]))
    assert other.runs() == ()
    assert other.query("SELECT count(*) FROM environment")[1] == ((0,),)
