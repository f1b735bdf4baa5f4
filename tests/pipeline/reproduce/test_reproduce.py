"""The papers' tables: counted or measured, beside the printed values."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.records import bench, pick, run, timed

from lamina.errors import UsageError
from lamina.pipeline import reproduce
from lamina.pipeline.explain import Side
from lamina.pipeline.imports import import_file
from lamina.pipeline.reproduce import _beside
from lamina.pipeline.reproduce.sample import Sample
from lamina.pipeline.reproduce.statements import CHECKS, check
from lamina.pipeline.targets import find
from lamina.recipes import recordings
from lamina.report.figures import FIGURES as FIGURE_IDS
from lamina.spec import Workload
from lamina.spec.published import Published, entries, entry
from lamina.store import Store, open_store


def test_operation_counts_agree_with_the_table_but_for_the_disputed_softmax(tmp_path: Path) -> None:
    table = entry("dnnmark-table-5.1")
    done = reproduce(table, table.workload, None, tmp_path)
    assert done.run is None and len(done.rows) == 21
    assert [row.value.layer for row in done.rows if not row.agrees] == ["softmax"]
    assert [row.value.layer for row in done.rows if row.value.disputed] == ["softmax"]


def test_measured_tables_need_a_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="store"):
        reproduce(entry("dnnmark-table-4.4"), Workload(), None, tmp_path)


OF_RECIPES = [
    it for it in entries() if it.how in ("counted", "measured", "profiled") and not (it.simulates or it.measures)
]


@pytest.mark.parametrize("published", OF_RECIPES, ids=lambda each: each.id)
def test_every_entry_finds_its_recipe_and_layers(published: Published) -> None:
    target, _ = find(published.recipe)
    assert len(_beside(published, target.resolve())) == len(published.values)


@pytest.fixture(scope="module")
def papers() -> Iterator[Store]:
    """The papers' network, with LRN, in fp32."""
    with open_store(":memory:") as store:
        import_file(recordings.of("dnnmark-alexnet-227")[0], store)
        yield store


@pytest.fixture(scope="module")
def recorded() -> Iterator[Store]:
    with open_store(":memory:") as store:
        import_file(recordings.path("alexnet"), store)
        yield store


FIGURES = [it for it in entries() if it.figures]


@pytest.mark.parametrize("published", FIGURES, ids=lambda each: each.id)
def test_statements_are_looked_for_in_a_recorded_profile(published: Published, papers: Store, tmp_path: Path) -> None:
    before = len(papers.runs())
    done = reproduce(published, published.workload, papers, tmp_path, run_id="latest", against="latest")
    assert len(papers.runs()) == before and done.run == papers.run("latest")
    assert len(done.rows) == len(published.statements)
    assert all(row.ours and row.agrees is not None for row in done.rows), [row.ours for row in done.rows]
    assert {*published.figures} <= {*FIGURE_IDS}


def test_what_holds_on_an_h200_and_what_does_not(recorded: Store, tmp_path: Path) -> None:
    def held(name: str) -> list[bool | None]:
        it = entry(name)
        return [row.agrees for row in reproduce(it, it.workload, recorded, tmp_path, run_id="latest").rows]

    assert held("icpe18-figure-5.3") == [True, True, True]
    assert held("icpe18-figure-5.5") == [None, None]  # one run alone
    assert held("icpe18-figure-5.9") == [True]
    # Tensor cores compute so fast that convolutions wait for their operands.
    assert held("icpe18-figure-5.7")[:2] == [False, True]


def test_a_change_is_put_beside_the_published_gain(tmp_path: Path, store_path: Path) -> None:
    it = entry("icpe18-optimizations").model_copy(update={"recipe": "lenet5"})
    with open_store(store_path) as store:
        done = reproduce(it, Workload(batch=(1,), repeat=1, device="cpu", check=False), store, tmp_path)
        removed, bypassed = done.rows
        assert done.run is not None and done.run.verb == "what-if"
        assert removed.agrees is not None and "%" in removed.ours
        assert bypassed.agrees is None and "needs a GPU" in bypassed.ours
        again = reproduce(it, Workload(), store, tmp_path, run_id=done.run.id)
        assert again.rows == done.rows


def test_tables_are_not_read_off_a_run(recorded: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--run is for figures"):
        reproduce(entry("dnnmark-table-4.4"), Workload(), recorded, tmp_path, run_id="latest")


BY_TIME = {"linear_layers_dominate", "convolutions_dominate"}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_that_cannot_tell_says_so(name: str) -> None:
    held = check(name, Sample(Side(run(), (timed(pick(bench(), "conv1"), 10.0),))))
    assert held.ours and (held.holds is True) == (name in BY_TIME) and held.holds is not False


@pytest.mark.parametrize("convolutions", [1.0, 100.0])
def test_checks_see_both_outcomes(convolutions: float) -> None:
    rows = tuple(timed(row, convolutions if row.kind == "convolution" else 10.0) for row in bench())
    for name in BY_TIME:
        assert check(name, Sample(Side(run(), rows))).holds is (convolutions > 10)
