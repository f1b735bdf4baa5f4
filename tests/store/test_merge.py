"""Merging databases: every run once, whatever was merged before, and whatever killed it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lamina.record import LayerRun, Run
from lamina.store import Store, open_store
from lamina.store.checked import faults
from lamina.store.merge import merge

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]


@pytest.fixture
def source(a_run: MakeRun, a_layer_run: MakeLayerRun) -> Any:
    with open_store(":memory:") as database:
        for name in ("first", "second", "third"):
            database.begin(a_run(name))
            database.add(name, a_layer_run())
            database.add(name, a_layer_run("fc"))
            database.finish(name, "done", "2026-01-02T03:04:05Z")
        yield database


def ends(source: Store, target: Store, **options: bool) -> list[str]:
    return [one.what for one in merge(source, target, **options)]


def test_every_run_is_copied_once(source: Store, store: Store) -> None:
    assert ends(source, store) == ["copied"] * 3
    assert [run.id for run in store.runs()] == [run.id for run in source.runs()]
    assert store.layers("second") == source.layers("second")
    assert ends(source, store) == ["already there"] * 3
    assert not list(faults(store))


def test_a_merge_that_was_killed_goes_on(source: Store, store: Store) -> None:
    halfway = merge(source, store)
    assert next(halfway).what == "copied"
    halfway.close()
    assert ends(source, store) == ["already there", "copied", "copied"]


def test_a_run_that_went_on_is_completed(
    source: Store, store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun
) -> None:
    store.begin(a_run("second"))
    store.add("second", a_layer_run())
    assert ends(source, store) == ["copied", "completed", "copied"]
    assert len(store.layers("second")) == 2 and store.run("second").status == "done"


def test_what_is_further_in_the_target_stays(source: Store, store: Store, a_run: MakeRun) -> None:
    with open_store(":memory:") as early:
        early.begin(a_run("second"))
        assert ends(source, store) == ["copied"] * 3
        assert ends(early, store) == ["already there"]
    assert len(store.layers("second")) == 2


def test_two_ended_runs_that_differ_are_named(source: Store, store: Store, a_run: MakeRun) -> None:
    store.begin(a_run("second"))
    store.finish("second", "done", "2026-01-02T03:04:05Z")
    assert ends(source, store) == ["copied", "differs", "copied"]
    assert not store.layers("second")


def test_a_dry_run_writes_nothing(source: Store, store: Store) -> None:
    assert ends(source, store, dry_run=True) == ["copied"] * 3
    assert not store.runs()


def test_merging_both_ways_gives_equal_databases(
    source: Store, store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun
) -> None:
    store.begin(a_run("own"))
    store.add("own", replace(a_layer_run(), note="noisy"))
    store.finish("own", "done", "2026-01-02T03:04:05Z")
    list(merge(source, store))
    list(merge(store, source))
    assert {run.id for run in source.runs()} == {run.id for run in store.runs()}
    assert ends(source, store) == ends(store, source) == ["already there"] * 4
