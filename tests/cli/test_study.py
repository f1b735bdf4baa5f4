"""lamina study, apply and --plan: options refused early, and one small study from the command line to its plan."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lamina.cli import app
from lamina.cli.study import seconds, size
from lamina.errors import UsageError

RUNNER = CliRunner()


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5m", 90)])
def test_times(text: str, expected: float) -> None:
    assert seconds("--budget", text) == expected


@pytest.mark.parametrize("text", ["", "m", "10x", "1h 30m", "-5", "0s", "10m5"])
def test_what_is_no_time(text: str) -> None:
    if text == "10m5":  # ten minutes and five seconds
        assert seconds("--budget", text) == 605
        return
    with pytest.raises(UsageError, match="--budget"):
        seconds("--budget", text)


@pytest.mark.parametrize(
    ("text", "expected"), [("8GiB", 8 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), ("2tb", 2 * 10**12)]
)
def test_sizes(text: str, expected: int) -> None:
    assert size("--max-memory", text) == expected


@pytest.mark.parametrize("text", ["", "8", "8G", "0GiB", "-1GiB", "8 GiB more", "8GiBB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="--max-memory: expected a size such as 8GiB"):
        size("--max-memory", text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study", "lenet6"], "did you mean 'lenet5'"),
        (["study", "lenet5", "--goal", "learn"], "--goal: 'learn' is unknown"),
        (["study", "lenet5", "--mode", "graphs"], "did you mean 'graph'"),
        (["study", "lenet5", "--budget", "soon"], "expected a time such as 90s"),
        (["study", "lenet5", "--max-memory", "lots"], "expected a size such as 8GiB or 500MB"),
        (["study", "lenet5", "--impl", "circulant[block=4]"], "option 'block' is unknown"),
        (["study", "lenet5", "--goal", "train", "--epochs", "0"], "expected at least 1 with --goal train"),
        (["study", "lenet5", "--weights", "none.safetensors"], "expected a file, got none.safetensors"),
        (["apply", "lenet5", "none.toml"], "none.toml: cannot be read"),
        (["bench", "lenet5", "--plan", "none.toml"], "none.toml: cannot be read"),
        (["profile", "lenet5", "--plan", "none.toml"], "none.toml: cannot be read"),
        (["train", "lenet5", "--data", "fashion-mnist", "--plan", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_wrong_options_are_refused(words: list[str], message: str) -> None:
    found = RUNNER.invoke(app, words)
    assert found.exit_code == 2 and message in " ".join(found.output.split()), found.output


def test_from_a_network_to_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "cache"))
    store, folder = str(tmp_path / "runs.db"), tmp_path / "plan"
    few = ["--mode", "eager", "--precision", "fp32", "--no-rivals", "--calibration", "50", "--batch-size", "8"]
    methods = ["--impl", "eliminated[recovery=least_squares,keep=0.5]", "--layer", "classifier.*", "--budget", "60s"]
    words = ["study", "lenet5", "--train-epochs", "1", *few, *methods, "--output", str(folder), "--store", store]
    page = tmp_path / "study.html"
    done = RUNNER.invoke(app, [*words, "--report", str(page), "--format", "json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["goal"] == "infer" and {one["layer"] for one in document["trials"]} >= {"classifier.2"}
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    for command in (
        ["apply", "lenet5", str(folder), "--classes", "10", "--no-time"],
        ["bench", "lenet5", "--plan", str(folder), "--seconds", "0.001", "--phase", "forward", "--store", store],
        ["report", document["run"], "--summary", "--store", store],
    ):
        found = RUNNER.invoke(app, command)
        assert found.exit_code == 0, found.output
