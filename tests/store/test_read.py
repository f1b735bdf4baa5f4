"""Finding runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.record import Run
from lamina.store import Store, open_store

MakeRun = Callable[..., Run]
IDS = ("20260101-aaa", "20260101-aab", "20260102-AAA", "2026_102-x", "x")


@pytest.fixture
def stocked(store: Store, a_run: MakeRun) -> Store:
    """A store with a run of each id, each later than the one before."""
    for day, run_id in enumerate(IDS, start=1):
        store.begin(a_run(run_id, started=f"2026-01-0{day}T00:00:00Z", verb="train" if day % 2 else "bench"))
    return store


def test_the_latest_run_is_first_whatever_came_in_last(stocked: Store, a_run: MakeRun) -> None:
    stocked.begin(a_run("old", started="2025-12-31T00:00:00Z"))  # from another machine, say
    assert [run.id for run in stocked.runs()] == [*reversed(IDS), "old"]
    assert stocked.run("latest").id == "x"


def test_of_two_runs_begun_at_once_the_second_is_later(store: Store, a_run: MakeRun) -> None:
    for run_id in ("b", "a"):
        store.begin(a_run(run_id))
    assert [run.id for run in store.runs()] == ["a", "b"]
    assert store.run("latest").id == "a"


def test_runs_may_be_few_or_of_one_verb(stocked: Store) -> None:
    assert [run.id for run in stocked.runs(limit=2)] == ["x", "2026_102-x"]
    assert [run.id for run in stocked.runs(verb="bench")] == ["2026_102-x", "20260101-aab"]
    assert [run.id for run in stocked.runs(limit=1, verb="bench")] == ["2026_102-x"]
    assert len(stocked.runs(limit=None)) == len(IDS)
    assert stocked.runs(verb="unknown") == ()


@pytest.mark.parametrize(
    ("prefix", "found"),
    [("x", "x"), ("20260101-aab", IDS[1]), ("20260102", IDS[2]), ("2026_", IDS[3])],
)
def test_a_prefix_of_one_run_finds_it(stocked: Store, prefix: str, found: str) -> None:
    assert stocked.run(prefix).id == found


def test_an_id_is_found_though_others_begin_with_it(stocked: Store, a_run: MakeRun) -> None:
    for number in range(30):
        stocked.begin(a_run(f"x{number}", started="2027-01-01"))
    assert stocked.run("x").id == "x"


@pytest.mark.parametrize("prefix", ["2026010", "20260101-aa", ""])
def test_a_prefix_of_several_runs_lists_them(stocked: Store, prefix: str) -> None:
    with pytest.raises(UsageError, match="ambiguous") as caught:
        stocked.run(prefix)
    assert [run_id for run_id in IDS if run_id in str(caught.value).split(": ")[1].split(", ")] == [
        run_id for run_id in IDS if run_id.startswith(prefix)
    ]


@pytest.mark.parametrize("unknown", ["20260101-aaA", "2026%", "20260102-aaa", "_", "X", "20260101-aaa "])
def test_an_unknown_run_is_told_the_nearest(stocked: Store, unknown: str) -> None:
    with pytest.raises(UsageError, match=r"did you mean '2026|expected one of: 20260101-aaa, "):
        stocked.run(unknown)


@pytest.mark.parametrize("name", ["latest", "20260101", ""])
def test_in_an_empty_store_there_is_no_run(store: Store, name: str) -> None:
    assert store.runs() == ()
    with pytest.raises(UsageError, match="there are no runs yet"):
        store.run(name)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.sets(st.text("aA%_é'", min_size=1, max_size=4), min_size=1, max_size=6),
    prefix=st.text("aA%_é'", min_size=1, max_size=4),
)
def test_lookup_agrees_with_startswith(a_run: MakeRun, ids: set[str], prefix: str) -> None:
    with open_store(":memory:") as store:
        for run_id in ids:
            store.begin(a_run(run_id))
        fitting = {prefix} & ids or {run_id for run_id in ids if run_id.startswith(prefix)}
        if len(fitting) == 1:
            assert store.run(prefix).id in fitting
        else:
            with pytest.raises(UsageError, match="ambiguous" if fitting else "not in this database"):
                store.run(prefix)


@pytest.mark.parametrize("given", [None, 5, b"20260101-aaa", ["x"], object()])
def test_a_run_of_another_type_is_refused_and_does_not_blame_the_database(stocked: Store, given: Any) -> None:
    uses: list[Callable[[Any], object]] = [stocked.layers, stocked.measured, stocked.export_run, stocked.delete]
    for use in uses:
        with pytest.raises(UsageError, match="^run_id: expected a text, got "):
            use(given)
    with pytest.raises(UsageError, match="^run: expected a text, got "):
        stocked.run(given)
    assert len(stocked.runs()) == len(IDS)


def test_other_arguments_of_another_type_are_refused_by_name(stocked: Store) -> None:
    wrong: Any = Path("x")
    for expected, use in {
        "limit: expected a whole number": lambda: stocked.runs(limit=wrong),
        "verb: expected a text": lambda: stocked.count_runs(wrong),
        "target: expected a text": lambda: stocked.runs(target=wrong),
        "fingerprint: expected a text": lambda: stocked.unfinished(wrong),
        "layer: expected a text": lambda: stocked.kernels("x", wrong),
        "metric: expected a text": lambda: stocked.counters("x", metric=wrong),
        "query: expected a text": lambda: stocked.query(wrong),
    }.items():
        with pytest.raises(UsageError, match=f"^{expected}, got PosixPath"):
            use()
