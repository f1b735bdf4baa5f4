"""Long tables on stdout are short unless --all; JSON and CSV are always whole."""

import json
import os
from dataclasses import replace

import pytest
from tests.cli.conftest import Lamina
from tests.report.convnext import convnext
from tests.report.records import ROOFS, bench, failed, timed, whole_step
from tests.report.records import run as report_run

from lamina.record import LayerRun
from lamina.store import open_store


def fill(run_id: str, rows: list[LayerRun], second: int = 0) -> None:
    with open_store(os.environ["LAMINA_DB"]) as store:
        started = f"2026-01-15T09:02:{second:02}+00:00"
        store.begin(replace(report_run(), id=run_id, verb="bench", started=started))
        for row in rows:
            store.add(run_id, row)
        store.add_roofs(run_id, ROOFS)


def test_runs_show_folds_and_hides_but_in_full(lamina: Lamina) -> None:
    fill("long", convnext())
    short, whole = lamina("runs", "show", "long").stdout, lamina("runs", "show", "long", "--all").stdout
    assert "stages.2.blocks.0-8" in short and short.rstrip().endswith("--all shows every row")
    assert "stages.2.blocks.0-8" not in whole and "stages.2.blocks.5.mlp.act" in whole and "--all" not in whole
    assert len(json.loads(lamina("runs", "show", "long", "--format", "json").stdout)) == 393
    assert lamina("runs", "show", "long", "--format", "csv").stdout.count("\n") == 394


def test_nothing_is_cut_in_a_pipe(lamina: Lamina) -> None:
    name = "blocks." * 50
    fill("wide", [replace(row, layer=f"{name}{place}") for place, row in enumerate(bench()) if row.timing])
    shown = lamina("runs", "show", "wide").stdout
    assert "…" not in shown and f"{name}0 " in shown and " µs" in shown
    assert [line for line in shown.splitlines() if line.endswith(" ")] == []


def test_a_list_of_runs_fits_the_terminal(lamina: Lamina, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.cli.printing.width", lambda: 80)
    with open_store(os.environ["LAMINA_DB"]) as store:
        started = "2026-01-15T09:02:10+00:00"
        store.begin(replace(report_run("interrupted"), id="a" * 12, verb="profile", target="n" * 60, started=started))
    shown = lamina("runs", "ls").stdout
    assert "a" * 12 in shown and "profile" in shown and "interrupted" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", [("bench",), ("profile",), ("explain",), ("runs", "show")])
def test_each_command_has_the_option(lamina: Lamina, command: tuple[str, ...]) -> None:
    assert "--all" in lamina(*command, "--help").stdout


def test_compare_shows_the_largest_differences_first(lamina: Lamina) -> None:
    fill("long", convnext())
    us = [(row, row.timing.median_us if row.timing else 0.0) for row in convnext()]
    fill("other", [timed(row, 3 * time) if row.layer == "head.fc" else row for row, time in us], second=1)
    short, whole = lamina("compare", "long", "other").stdout, lamina("compare", "long", "other", "--all").stdout
    assert "convnext_tiny" in short.splitlines()[4]
    assert [line.split()[0] for line in short.splitlines()[5:8]] == ["head.fc"] * 3
    assert "of 393 pairs, 372 of smaller difference are hidden: --all shows all" in short
    assert "--all" not in whole and "stages.2.blocks.5.mlp.act" in whole and "stages.2.blocks.5.mlp.act" not in short
    assert len(json.loads(lamina("compare", "long", "other", "--format", "json").stdout)["pairs"]) == 393


def test_a_slowdown_ends_compare_with_an_exit_code(lamina: Lamina) -> None:
    fill("base", bench())
    us = [(row, row.timing.median_us if row.timing else 0.0) for row in bench()]
    fill("slow", [timed(row, 1.5 * time) if row.layer == "conv1" else row for row, time in us], second=1)
    assert lamina("compare", "base", "slow").exit_code == 0
    assert lamina("compare", "base", "slow", "--max-slowdown", "60").exit_code == 0
    assert lamina("compare", "slow", "base", "--max-slowdown", "0").exit_code == 0
    for words in ((), ("--format", "json")):
        refused = lamina("compare", "base", "slow", "--max-slowdown", "5", *words)
        assert refused.exit_code == 1 and "conv1" in refused.stdout
        assert "run slow: 3 phases exceed --max-slowdown 5 against run base: conv1" in refused.stderr
        assert "conv1 forward: 50.0 % longer" in refused.stderr
    assert lamina("compare", "base", "slow", "--max-slowdown", "5", "--by", "kernel").exit_code == 2
    ignored = lamina("compare", "base", "slow", "--metric", "dram__bytes.sum")
    assert ignored.exit_code == 2 and "--metric: expected --by counter, got layer" in ignored.stderr


def test_runs_without_layer_times_say_so(lamina: Lamina) -> None:
    for name in ("step", "skipped"):
        fill(name, ODD[name])
        assert "nothing to explain: no layer has a time" in lamina("explain", name).stdout
    assert "were skipped: its input needs no gradient" in lamina("explain", "skipped").stdout


def test_explain_begins_with_the_answer(lamina: Lamina) -> None:
    fill("long", convnext())
    lines = lamina("explain", "long").stdout.splitlines()
    assert lines[2].startswith("1. The GPU is idle for 60% of the step (launch-bound)") and "2.5x" in lines[2]
    assert [line[:2] for line in lines[3:7]] == ["2.", "3.", "4.", "5."] and lines[7] == ""


ODD = {
    "failed": [failed(row) for row in bench()],
    "skipped": [replace(failed(row, "its input needs no gradient"), outcome="skipped") for row in bench()],
    "some": [failed(row) if place % 4 else row for place, row in enumerate(bench())],
    "costless": [replace(row, flops=None, bytes=None, rel_error=None) for row in bench()],
    "single": bench()[:1],
    "forward": [row for row in bench() if row.phase == "forward"],
    "three": [*bench(), *bench("tf32"), *bench("bf16")],
    "several": [*bench(), *bench(impl="sparse"), *bench(impl="circulant[block_size=64]")],
    "step": [whole_step(bench(), 44_000)],
    "empty": [],
}
"""Runs that are unlike an ordinary one."""


@pytest.mark.parametrize("name", ODD)
def test_odd_runs_are_explained_shown_compared_and_reported(lamina: Lamina, name: str) -> None:
    fill("odd", ODD[name])
    fill("usual", bench(), second=1)
    commands = [
        ("explain", "odd"),
        ("explain", "odd", "--all"),
        ("explain", "odd", "--format", "table"),
        ("explain", "odd", "--format", "json"),
        ("runs", "show", "odd"),
        ("compare", "odd", "usual"),
        ("compare", "usual", "odd", "--format", "json"),
        ("compare", "odd", "odd", "--per-item"),
        ("report", "odd", "-o", f"{os.environ['LAMINA_DB']}.html"),
        ("report", "odd", "--against", "usual", "-o", f"{os.environ['LAMINA_DB']}.html"),
        ("report", "usual", "--against", "odd", "-o", f"{os.environ['LAMINA_DB']}.html"),
        ("report", "odd", "--figure", "time", "-o", f"{os.environ['LAMINA_DB']}.png"),
    ]
    for words in commands:
        result = lamina(*words)
        said = result.stdout + result.stderr
        assert result.exit_code in (0, 2), (words, said, result.exception)
        assert "Traceback" not in said and said.strip(), (words, said)
        assert result.exit_code == 0 or "lamina: " in said, (words, said)
        if result.exit_code == 0 and words[0] == "explain":
            assert "None" not in result.stdout.replace("NoneType", "") or "json" in words, (words, said)
