"""bench --phase allreduce: the gradients of each layer, exchanged."""

from pathlib import Path

import pytest
import torch

from lamina import measure
from lamina.errors import UsageError
from lamina.pipeline import find, report
from lamina.pipeline.allreduce import allreduce, gradients
from lamina.record import Timing
from lamina.spec import Method, Workload
from lamina.store import Store, open_store

LENET = {"features.0": 156, "features.3": 2416, "classifier.0": 48120, "classifier.2": 10164, "classifier.4": 850}
WORKLOAD = Workload.model_validate({"impl": ["dense", "circulant[block_size=8]"], "precision": ["fp32", "bf16"]})


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """In place of processes: what would be exchanged."""
    seen: list[list[list[int]]] = []

    def instead(exchanges: list[list[int]], dtype: torch.dtype, *_: object) -> list[Timing]:
        seen.append(exchanges)
        return [Timing("wall", "-", 2.0, 1.0, 3.0, 5) for _ in exchanges]

    monkeypatch.setattr(measure, "allreduce_times", instead)
    return seen


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "runs.db")


def test_gradients_are_those_of_the_parameters() -> None:
    target, _ = find("lenet5")
    assert {one.name: one.elements for one in gradients(target, Method())} == LENET
    ours = {one.name: one for one in gradients(target, Method.parse("circulant[block_size=8]"))}
    assert ours["classifier.0"].elements == 15 * 50 * 8 + 120  # blocks of 8 by 8 and the bias
    assert ours["features.0"].impl == "dense" and ours["features.0"].reason
    with pytest.raises(UsageError, match="matches no layer"):
        list(gradients(target, Method(), ("features.9",)))


def test_rows_have_the_bytes_and_what_ran(store: Store, exchanged: list[list[list[int]]]) -> None:
    target, _ = find("lenet5")
    run = allreduce(target, WORKLOAD, store, processes=2)
    rows = {(row.layer, row.impl, row.precision): row for row in store.layers(run.id)}
    assert len(rows) == 4 * 6 and all(row.phase == "allreduce" and row.timing for row in rows.values())
    assert rows["classifier.0", "dense", "fp32"].bytes == 4 * LENET["classifier.0"]
    assert rows["classifier.0", "dense", "bf16"].bytes == 2 * LENET["classifier.0"]
    small = rows["classifier.0", "circulant[block_size=8]", "fp32"]
    assert small.bytes == 4 * 6120 and small.executed_impl == small.impl
    kept = rows["features.0", "circulant[block_size=8]", "fp32"]
    assert kept.executed_impl == "dense" and kept.selection_reason
    whole = rows["lenet5", "dense", "fp32"]
    assert whole.bytes == 4 * sum(LENET.values()) and "2 processes by gloo" in whole.device
    assert len(exchanged) == 2  # one for each precision: methods take turns
    assert exchanged[0][:6] == [*([size] for size in LENET.values()), [sum(LENET.values())]]
    assert report(store, run.id, Path(store.place).with_name("report.html")).exists()


def test_a_large_network_is_exchanged_in_buckets(store: Store, exchanged: list[list[list[int]]]) -> None:
    target, _ = find("alexnet")
    allreduce(target, WORKLOAD.model_copy(update={"impl": (Method(),), "precision": ("fp32",)}), store)
    buckets = exchanged[0][-1]
    assert len(buckets) == 10 and set(buckets[:-1]) == {25 * 2**20 // 4}
    assert sum(buckets) == sum(one[0] for one in exchanged[0][:-1])


def test_a_second_run_can_complete_the_first(
    store: Store, exchanged: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = find("lenet5")
    add, count = Store.add, 0

    def interrupted(self: Store, *args: object) -> None:
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        add(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        allreduce(target, WORKLOAD, store)
    monkeypatch.setattr(Store, "add", add)
    done = allreduce(target, WORKLOAD, store, resume=True)
    assert len(store.runs()) == 1 and len(store.layers(done.id)) == 24
    assert len(exchanged[1]) == 5  # of the first precision's twelve


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: list[list[list[int]]]) -> None:
    from typer.testing import CliRunner

    from lamina.cli import app

    monkeypatch.setenv("LAMINA_DB", str(tmp_path / "runs.db"))
    words = ["bench", "lenet5", "--phase", "allreduce", "--impl", "dense,circulant[block_size=8]", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--processes", "3"])
    assert done.exit_code == 0 and "allreduce" in done.stdout and "3 of 5 layers" in done.stdout, done.output
    assert CliRunner().invoke(app, [*words, "--processes", "1"]).exit_code == 2
