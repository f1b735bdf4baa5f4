"""A run travels to another database as JSON, whole or not at all."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from lamina.errors import UsageError
from lamina.record import Counter, Epoch, KernelRun, LayerRun, Roofs, Run
from lamina.store import Store, open_store

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]


@pytest.fixture
def document(store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun) -> dict[str, Any]:
    """An exported run with some of everything, as it is after a journey through a JSON file."""
    run = a_run(remarks=("é",), status="done", finished="2026-01-03")
    store.begin(run)
    launch = KernelRun("conv1", "forward", 0, "k", (7, 2, 1), (128, 1, 1), 96, None, 31.25)
    store.add(run.id, a_layer_run(rel_error=math.inf))
    store.add_kernels(run.id, [launch, replace(launch, invocation=1)])
    store.add_counters(run.id, [Counter("conv1", "forward", 1, "dram_bytes", None, "byte")])
    # From here on a name alone no longer tells which layer the launches belong to.
    store.add(run.id, a_layer_run(batch=1, inputs=((1, 3, 224, 224),)))
    store.add(run.id, a_layer_run("fc", place=1, outcome="skipped", timing=None, flops=None))
    store.add_epoch(run.id, Epoch(1, 400, 0.1, math.inf, 0.125, 2.5, 0.0625, 12.5))
    store.add_roofs(run.id, Roofs("a chip", "2026", 2, {"torch": "2"}, 1.0, 2.0, {"fp32": 3.5}, 4.0, 5.0))
    loaded: dict[str, Any] = json.loads(json.dumps(store.export_run(run.id), allow_nan=False))
    return loaded


@pytest.fixture
def other() -> Iterator[Store]:
    with open_store(":memory:") as store:
        yield store


def test_a_run_arrives_whole(store: Store, other: Store, document: dict[str, Any]) -> None:
    assert other.import_run(document) == "20260102-abc"
    for read in (Store.run, Store.layers, Store.epochs, Store.roofs, Store.kernels, Store.counters):
        assert read(other, "20260102-abc") == read(store, "20260102-abc")
    assert len(other.kernels("20260102-abc")) == 2
    dates = "SELECT layer, batch, created FROM layer_table ORDER BY layer, batch"
    assert other.query(dates) == store.query(dates)
    owners = (
        "SELECT parameters, inputs FROM counter JOIN kernel ON kernel.id = kernel_id JOIN layer ON layer.id = layer_id"
    )
    assert other.query(owners)[1] == ((23_296, "[[32, 3, 224, 224]]"),)


def test_a_document_has_all_fields_of_the_records(document: dict[str, Any]) -> None:
    assert document["format"] == 1
    for name, record, more in [
        ("layers", LayerRun, {"created", "layer_id"}), ("epochs", Epoch, set()), ("roofs", Roofs, set()),
        ("kernels", KernelRun, {"layer_id"}), ("counters", Counter, {"layer_id"}),
    ]:  # fmt: skip
        assert document[name][0].keys() == {field.name for field in fields(record)} | more
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


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("format", 2, "format: Input should be 1"),
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
        ("kernels.0.layer_id", 77, "layer_id: no layer has 77"),
        ("counters.0.layer_id", 78, "layer_id: no layer has 78"),
        ("kernels.0.grid", [1, 2], "kernels.0.grid.2: "),
        ("layers", {"a": 1}, "layers: "),
    ],
)
def test_what_is_no_exported_run_is_refused_whole(
    other: Store, document: dict[str, Any], path: str, value: Any, told: str
) -> None:
    with pytest.raises(UsageError, match=r"expected a run as lamina exports it \(format 1\), got: ") as caught:
        other.import_run(change(document, path, value))
    assert told in str(caught.value)
    assert other.runs() == ()


@pytest.mark.parametrize("document", [{}, {"runs": []}, [], "run", None, 7])
def test_anything_but_a_document_is_refused(other: Store, document: Any) -> None:
    with pytest.raises(UsageError, match="expected a run as lamina exports it"):
        other.import_run(document)


def test_a_fault_found_late_leaves_nothing_behind(other: Store, document: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected a run as lamina exports it .* rel_error cannot be stored: NaN"):
        other.import_run(change(document, "layers.0.rel_error", "NaN"))
    with pytest.raises(UsageError, match="add its kernels first"):
        other.import_run(change(document, "counters.0.invocation", 5))
    assert other.runs() == ()
    assert other.query("SELECT count(*) FROM environment")[1] == ((0,),)
