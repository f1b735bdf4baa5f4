"""lamina what-if, as a person types it."""

import csv
import io
import json

import pytest
from tests.cli.conftest import Lamina

QUICK = ("lenet5", "--repeat", "1", "--device", "cpu", "--batch-size", "1", "--data", "synthetic")


def test_gains_are_printed_predicted_and_measured(lamina: Lamina) -> None:
    result = lamina("what-if", *QUICK, "--change", "without-activations,l1-bypass")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert "predicted" in shown and "activations removed" in shown and "needs a GPU" in shown


def test_programs_get_every_column(lamina: Lamina) -> None:
    result = lamina("what-if", *QUICK, "--change", "channels_last", "--no-check", "--format", "json")
    (step,) = [row for row in json.loads(result.stdout) if row["phase"] == "step"]
    assert step["change"] == "channels_last" and step["after_median_us"] > 0
    assert "rows of a CPU have none" in step["rule"]
    assert step["measured_gain"] == pytest.approx(step["before_median_us"] / step["after_median_us"] - 1)
    result = lamina("what-if", *QUICK, "--change", "cuda-graph", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    assert row["reason"] == row["miss"] == "needs a GPU" and row["after_median_us"] == ""


def test_selected_layers_run_by_another_implementation(lamina: Lamina) -> None:
    chosen = ("--impl", "eliminated[keep=0.5]", "--layer", "classifier.[02]")
    result = lamina("what-if", *QUICK, *chosen, "--format", "json")
    rows = json.loads(result.stdout)
    assert {row["change"] for row in rows} == {"impl"} and all(row["rule"] for row in rows)
    assert {(row["layer"], row["phase"]) for row in rows} == {
        *((layer, phase) for layer in ("classifier.0", "classifier.2") for phase in ("forward", "step")),
        ("lenet5", "step"),
    }


def test_a_long_table_shows_the_slowest_lines_and_all_of_them_on_request(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.report.folding.LONG", 10)
    chosen = ("--change", "channels_last,algorithm", "--no-check")
    short = lamina("what-if", *QUICK, *chosen)
    assert short.exit_code == 0, short.output
    shown = " ".join(short.stdout.split())
    assert "were not executed: --all shows every one" in shown and "needs a kernel of 3 along each axis" in shown
    every = lamina("what-if", *QUICK, *chosen, "--all")
    assert "--all" not in every.stdout and every.stdout.count("\n") > short.stdout.count("\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a SPEC"),
        (("lenet5", "--impl", "dense"), "dense is what the network is"),
        (("lenet5", "--layer", "clasifier.0"), "did you mean 'classifier.0'"),
        (("lenet5", "--change", "fuse"), "--change: 'fuse' is unknown"),
        (("lenet5", "--profile", "nothing"), "nothing"),
    ],
)
def test_wrong_options_exit_two(lamina: Lamina, arguments: tuple[str, ...], message: str) -> None:
    result = lamina("what-if", *arguments)
    assert result.exit_code == 2 and message in result.stderr.replace("\n", " ")
