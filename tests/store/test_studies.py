"""Studies come back from the database as they were written, candidate by candidate."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.errors import StoreError, UsageError
from lamina.record import Run, Study, Timing, Trial
from lamina.record.study import FrontPoint, Measured, Settings
from lamina.store import Store, open_store

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
REAL = st.floats(allow_nan=False, allow_infinity=False, width=32)
SETTINGS = st.builds(Settings, TEXT, TEXT, TEXT, TEXT)
TIMING = st.builds(Timing, TEXT, TEXT, REAL, REAL, REAL, st.integers(1, 99), st.none() | st.integers(0, 99))
OUTCOME = st.sampled_from(["selected", "slower", "inaccurate", "refused", "failed"])
TRIAL = st.builds(
    Trial,
    TEXT,
    TEXT,
    TEXT,
    SETTINGS,
    st.none() | TIMING,
    st.none() | REAL,
    st.none() | REAL,
    st.none() | REAL,
    OUTCOME,
    TEXT,
)
WHOLE = st.builds(
    Measured, TEXT, SETTINGS, st.none() | TIMING, st.none() | REAL, st.none() | st.integers(0, 2**40),
    st.none() | st.integers(0, 2**40), st.none() | REAL, OUTCOME, TEXT,
)  # fmt: skip
NAMED = st.tuples(WHOLE, WHOLE).map(lambda two: (replace(two[0], name="before"), replace(two[1], name="plan")))
WHOLES = st.tuples(NAMED, st.lists(WHOLE, max_size=2)).map(lambda parts: (*parts[0], *parts[1]))
FRONT = st.builds(FrontPoint, REAL, REAL, st.dictionaries(TEXT, TEXT, max_size=2), st.booleans())
STUDY = st.builds(
    Study, TEXT, st.sampled_from(["train", "infer"]), st.sampled_from(["accuracy", "output error"]), REAL, TEXT,
    st.integers(1, 512), WHOLES, st.just(()), st.lists(FRONT, max_size=2).map(tuple),
    st.none() | REAL, TEXT, st.dictionaries(TEXT, TEXT, max_size=2), st.lists(TEXT, max_size=2).map(tuple),
    st.dictionaries(TEXT, REAL, max_size=2), st.none() | REAL,
)  # fmt: skip
ONE = Trial("fc", "Linear(4, 4)", "circulant[block_size=2]", Settings("fp32", "nchw", "eager"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(study=STUDY, trials=st.lists(TRIAL, max_size=3, unique_by=lambda one: (one.layer, one.impl, one.settings)))
def test_a_study_comes_back(a_run: Callable[..., Run], study: Study, trials: list[Trial]) -> None:
    with open_store(":memory:") as store, open_store(":memory:") as other:
        run = a_run()
        store.begin(run)
        for trial in trials:
            store.add_trial(run.id, trial)
        assert store.study(run.id) is None
        store.add_study(run.id, study)
        assert store.study(run.id) == replace(study, trials=tuple(trials))
        other.import_run(store.export_run(run.id))
        assert other.study(run.id) == store.study(run.id)


def test_a_candidate_that_is_judged_again_replaces_its_former_self(store: Store, a_run: Callable[..., Run]) -> None:
    run = a_run()
    store.begin(run)
    timed = replace(ONE, timing=Timing("wall", "warm", 3.0, 2.0, 4.0, 9))
    other = replace(ONE, settings=Settings("bf16", "nchw", "eager"))
    for trial in (ONE, other, timed, replace(timed, outcome="selected", reason="faster")):
        store.add_trial(run.id, trial)
    assert set(store.trials(run.id)) == {other, replace(timed, outcome="selected", reason="faster")}


def test_a_result_replaces_a_former_one(store: Store, a_run: Callable[..., Run]) -> None:
    def study(**values: Any) -> Study:
        wholes = tuple(Measured(name, ONE.settings, None) for name in ("before", "plan"))
        return Study("mlp", "infer", "accuracy", 1.0, "synthetic", 4, wholes, (), (), None, "", **values)

    run = a_run()
    store.begin(run)
    store.add_study(run.id, study())
    store.add_study(run.id, study(findings=("first",)))
    assert store.study(run.id) == study(findings=("first",))


@pytest.mark.parametrize("wholes", [(), ("before",), ("plan",)])
def test_a_result_without_the_network_before_or_by_the_plan_is_no_result(
    tmp_path: Path, a_run: Callable[..., Run], wholes: tuple[str, ...]
) -> None:
    with open_store(tmp_path / "runs.db") as store:
        run = a_run()
        store.begin(run)
        both = tuple(Measured(name, ONE.settings, None) for name in ("before", "plan"))
        store.add_study(run.id, Study("mlp", "infer", "accuracy", 1.0, "synthetic", 4, both, (), (), None, ""))
        document = store.export_run(run.id)
    text = json.dumps(document)
    kept = [one for one in both if one.name in wholes]
    for one in both:
        if one not in kept:
            text = text.replace(f'"name": "{one.name}"', '"name": "another"')
    with open_store(tmp_path / "other.db") as store, suppress(UsageError):  # refused at once, or when it is read
        store.import_run(json.loads(text))
        with pytest.raises(StoreError, match="holds a value that lamina did not write"):
            store.study(run.id)
