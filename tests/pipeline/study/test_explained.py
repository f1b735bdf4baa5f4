"""What limits the network, in a study's page."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pipeline.study.test_subject import subject

from lamina.errors import UnsupportedError
from lamina.pipeline import find
from lamina.pipeline.study import StudyConfig, explained
from lamina.pipeline.study.budget import Budget
from lamina.record.study import Settings
from lamina.store import Store

BF16 = Settings("bf16", "nhwc", "graph")


def context(store: Store, cache: Path, notes: list[str], seconds: float | None = None) -> Any:
    target, _ = find("lenet5")
    return SimpleNamespace(
        target=target, subject=subject(training=False), config=StudyConfig(batch=4), store=store, cache=cache,
        run_id="1", budget=Budget(seconds), note=notes.append,
    )  # fmt: skip


def test_layers_are_benched_at_the_precision_and_layout(tmp_path: Path, store: Store) -> None:
    notes: list[str] = []
    assert explained.explained(context(store, tmp_path, notes), BF16)
    (this,) = store.runs()
    assert notes == [f"layers at bf16, nhwc are in run {this.id}"] and this.command == "study 1"
    assert {(row.precision, row.layout, row.batch) for row in store.layers(this.id)} == {("bf16", "nhwc", 4)}


def test_a_short_budget_has_no_time_for_it(tmp_path: Path, store: Store) -> None:
    assert explained.explained(context(store, tmp_path, [], seconds=1.0), BF16) == () and not store.runs()


def test_a_network_that_cannot_be_benched_is_not_explained(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("no such device")

    notes: list[str] = []
    monkeypatch.setattr(explained, "bench", refused)
    assert explained.explained(context(store, tmp_path, notes), BF16) == ()
    assert notes == ["not explained: no such device"]
