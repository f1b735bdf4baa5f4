"""What a check finds: damage of the file, of references, and of values."""

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import text

from lamina.record import LayerRun, Run
from lamina.store import Store, open_store
from lamina.store.checked import faults


def test_a_whole_database_has_no_fault(store: Store, a_run: Callable[..., Run]) -> None:
    store.begin(a_run())
    assert list(faults(store)) == []


def test_a_reference_to_nothing_is_found(
    tmp_path: Path, a_run: Callable[..., Run], a_layer_run: Callable[..., LayerRun]
) -> None:
    path = tmp_path / "runs.db"
    with open_store(path) as store:
        store.begin(a_run())
        store.add(a_run().id, a_layer_run())
        with store._writing() as connection:
            connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        with store._engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.execute("PRAGMA foreign_keys=OFF")
            raw.execute("DELETE FROM layer")
        assert [fault for fault in faults(store) if "refers to a row of layer" in fault]


def test_a_value_that_lamina_did_not_write_is_found(
    tmp_path: Path, a_run: Callable[..., Run], a_layer_run: Callable[..., LayerRun]
) -> None:
    with open_store(tmp_path / "runs.db") as store:
        store.begin(a_run())
        store.add(a_run().id, a_layer_run())
        with store._writing() as connection:
            connection.execute(text("UPDATE layer SET inputs = '7'"))
        assert [fault for fault in faults(store) if "cannot be read" in fault]
