"""Names are data, never SQL: whatever they hold is stored, found and given back as it is."""

from collections.abc import Callable

import pytest

from lamina.errors import UsageError
from lamina.record import KernelRun, LayerRun, Run
from lamina.store import Store, flatten

NAMES = (
    "'; DROP TABLE run; --",
    '"; DELETE FROM layer; --',
    "' OR '1'='1",
    "%' ESCAPE '!",
    "\\'; SELECT pg_sleep(9); --",
    ":run_id {x} %(y)s %s ?",
    "</script><script>alert(1)</script>",
)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_no_sql(
    store: Store, a_run: Callable[..., Run], a_layer_run: Callable[..., LayerRun], name: str
) -> None:
    store.begin(a_run("other"))
    store.begin(a_run(name, verb=name, target=name, fingerprint=name, command=name))
    row = a_layer_run(name, impl="dense", reason=name)
    store.add(name, row)
    store.add_kernels(name, [KernelRun(row.key, 0, name, (1, 1, 1), (32, 1, 1), 8, 0, 1.5)])
    assert store.run(name).target == name and [run.id for run in store.runs(verb=name)] == [name]
    assert store.layers(name) == (row,) and [one.name for one in store.kernels(name, name)] == [name]
    assert store.unfinished(name) is not None and store.layers("other") == ()
    assert flatten(store.run(name), store.layers(name))[0]["layer"] == name
    document = store.export_run(name)
    store.delete(name)
    assert [run.id for run in store.runs()] == ["other"]
    assert store.import_run(document) == name and store.layers(name) == (row,)
    with pytest.raises(UsageError):
        store.run(name + "x")


@pytest.mark.parametrize("attack", ["DELETE FROM run", "SELECT 1; DELETE FROM run", "ATTACH DATABASE '/tmp/x' AS x"])
def test_a_query_only_reads(store: Store, a_run: Callable[..., Run], attack: str) -> None:
    store.begin(a_run())
    with pytest.raises(UsageError):
        store.query(attack)
    assert len(store.runs()) == 1
