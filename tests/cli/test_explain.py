"""lamina explain and lamina compare, as a person types them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina
from tests.explain.recorded import H200, recorded, whole
from tests.report.records import run as report_run

from lamina.record import LayerRun
from lamina.store import open_store


def faster(row: LayerRun) -> LayerRun:
    timing = row.timing
    assert timing
    half = replace(timing, median_us=timing.median_us / 2, q1_us=timing.q1_us / 2, q3_us=timing.q3_us / 2)
    return replace(row, timing=half)


def fill(store_path: str, run_id: str, half: bool = False, batch: int = 128) -> None:
    rows, kernels, counters = recorded()
    rows = [replace(faster(row) if half else row, batch=batch) for row in [*rows, whole(4000.0, rows)]]
    kernels = [replace(it, key=it.key._replace(batch=batch)) for it in kernels]
    if half:
        kernels = [replace(it, name=it.name.replace("nchwToNhwc", "noConversion")) for it in kernels]
    with open_store(store_path) as store:
        started = f"2026-01-15T09:02:{len(store.runs()):02}+00:00"
        store.begin(replace(report_run(), id=run_id, verb="profile", started=started))
        for row in rows:
            store.add(run_id, row)
        store.add_roofs(run_id, H200)
        store.add_kernels(run_id, kernels)
        store.add_counters(run_id, [replace(it, key=it.key._replace(batch=batch)) for it in counters])


@pytest.fixture
def two(lamina: Lamina) -> Lamina:
    fill(os.environ["LAMINA_DB"], "first")
    fill(os.environ["LAMINA_DB"], "second", half=True)
    return lamina


def test_paragraphs_are_what_explain_prints(two: Lamina) -> None:
    result = two("explain", "first")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("AlexNet on ") and "(run first)" in result.stdout
    assert "\n\n1. features.0 forward reaches" in result.stdout
    assert "The GPU is idle for 20% of the step (launch-bound): its 25 kernels take 3.22 ms" in result.stdout
    assert "\n\nThe step takes 4.00 ms in 25 kernels." in result.stdout and "\n6. " not in result.stdout
    assert "Every finding" not in result.stdout
    every = two("explain", "first", "--all").stdout
    assert every.startswith(result.stdout) and "- 22%" in every.partition("Every finding")[2].replace("21.5%", "22%")
    assert "\n\nfeatures.0 (convolution) takes 1.80 ms" in result.stdout


def test_a_table_is_limited_and_json_is_whole(two: Lamina) -> None:
    table = two("explain", "first", "--format", "table", "--limit", "3")
    assert table.exit_code == 0 and "dominant layers" in table.stdout
    document = json.loads(two("explain", "first", "--format", "json").stdout)
    left = len(document["findings"]) - 3
    assert f"{left} more findings: --all shows them" in table.stdout
    for words in (("--limit", "0"), ("--all",)):
        assert "more findings" not in two("explain", "first", "--format", "table", *words).stdout
    assert "launch overhead" in {it["rule"] for it in document["headlines"]} and len(document["headlines"]) <= 5
    assert document["run"] == "first" and document["paragraphs"][0]["layer"] is None
    assert all(0 <= it["confidence"] <= 1 and it["evidence"] for it in document["findings"])


def test_one_layer_and_wrong_words(two: Lamina) -> None:
    result = two("explain", "first", "--layer", "features.3")
    assert result.exit_code == 0 and "features.0" not in result.stdout and "features.3 (convolution)" in result.stdout
    for words in (("--layer", "nothing"), ("--format", "html"), ("--format", "csv")):
        result = two("explain", "first", *words)
        assert result.exit_code == 2 and "lamina: " in result.stderr
    assert two("explain", "no-such-run").exit_code == 2


def test_layers_are_compared(two: Lamina) -> None:
    result = two("compare", "first", "second")
    assert result.exit_code == 0, result.output
    assert "10 faster" in result.stdout and "all paired phases together: 2.00x" in result.stdout
    document = json.loads(two("compare", "first", "second", "--format", "json", "--layer", "features.1").stdout)
    (pair,) = document["pairs"]
    assert (pair["verdict"], pair["speedup"]) == ("faster", pytest.approx(2.0))
    assert (document["a"], document["b"]) == ("first", "second")


def test_kernels_are_compared(two: Lamina) -> None:
    result = two("compare", "first", "second", "--by", "kernel")
    assert result.exit_code == 0, result.output
    assert "3 changed" in result.stdout and "6 phases launch the same" in result.stdout
    assert "+ void cudnn::noConversion" in result.stdout
    assert "9 same" not in two("compare", "first", "first", "--by", "kernel").stdout
    assert "9 same" in two("compare", "first", "first", "--by", "kernel", "--all").stdout
    document = json.loads(two("compare", "first", "second", "--by", "kernel", "--format", "json").stdout)
    changed = [it for it in document["pairs"] if it["change"] == "changed"]
    assert {it["layer"] for it in changed} == {"features.0", "features.3"}
    assert all(len(it["added"]) == len(it["removed"]) for it in changed)


def test_counters_are_compared(two: Lamina) -> None:
    options = ("--by", "counter", "--metric", "l1tex__t_sector_hit_rate.pct", "--layer", "features.2")
    result = two("compare", "first", "second", *options)
    assert result.exit_code == 0, result.output
    assert "l1tex__t_sector_hit_rate.pct" in result.stdout and "1.00x" in result.stdout
    result = two("compare", "first", "second", "--by", "counter", "--metric", "l1tex__t_sector_hit_rat")
    assert result.exit_code == 2 and "did you mean" in result.stderr


def test_batches_of_runs_and_other_databases_are_compared(two: Lamina, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    fill(other, "elsewhere", batch=64)
    result = two("compare", "first", "elsewhere", "--other-store", other, "-b", "128,64")
    assert result.exit_code == 0 and "10 same" in result.stdout
    result = two("compare", "first", "elsewhere", "--other-store", other, "-b", "128,64", "--per-item")
    assert result.exit_code == 0 and "10 slower" in result.stdout and "per item" in result.stdout


@pytest.mark.parametrize(
    "words", [("--by", "phase"), ("-b", "1,2,3"), ("-b", "7"), ("--layer", "x"), ("--format", "csv"), ("-b", "x")]
)
def test_runs_that_cannot_be_compared_are_refused(two: Lamina, words: tuple[str, ...]) -> None:
    result = two("compare", "first", "second", *words)
    assert result.exit_code == 2 and result.stdout == ""
    assert "expected" in result.stderr or "neither run" in result.stderr or "is unknown" in result.stderr
