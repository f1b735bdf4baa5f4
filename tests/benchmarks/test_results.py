"""Results are written whatever they are."""

import argparse
import importlib
import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from lamina import measure


def test_numbers_that_are_not_finite_are_written_by_name_and_told(tmp_path: Path) -> None:
    asked = argparse.Namespace(output=tmp_path)
    with pytest.warns(UserWarning, match="does not fit the schema"):
        path = results.write("wrong", "cpu", [{"rel_error": inf, "all": (1.5, nan)}], {"worst": -inf}, asked)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["rows"] == [{"rel_error": "inf", "all": [1.5, "nan"]}]
    assert written["summary"] == {"worst": "-inf"}


def test_results_of_a_changed_source_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr("benchmarks.source.commit", lambda: "c0ffee0+dirty")
    row = {"workload": "a", "layer": "b", "phase": "step", "precision": "fp32", "layout": "-", "impl": "dense"}
    row |= {"batch": 1, "timing": "cpu", "l2": None, "median_us": 1.0, "q1_us": 1.0, "q3_us": 1.0, "n": 1}
    asked = argparse.Namespace(output=results.FOLDER)
    with pytest.warns(UserWarning, match="the source differs from commit c0ffee0"):
        path = results.write("right", "cpu", [row | {"rel_error": 0.0}], {}, asked)
    assert path.parent == tmp_path and not results.FOLDER.exists()


def test_rows_of_another_device_or_a_changed_source_are_not_resumed(tmp_path: Path) -> None:
    path, told = tmp_path / "earlier.json", {"commit": "c0ffee0", "device": measure.environment("cpu").device}

    def resumed(**changed: str) -> list[dict[str, Any]]:
        path.write_text(json.dumps({"provenance": told | changed, "rows": [{"n": 1}, {"n": 2, "of_commit": "a"}]}))
        return results.resumed(path, "cpu")

    assert results.resumed(None) == []
    assert resumed() == [{"n": 1, "of_commit": "c0ffee0"}, {"n": 2, "of_commit": "a"}]
    with pytest.raises(SystemExit, match="expected results of this device, .*, got an abacus"):
        resumed(device="an abacus")
    assert len(results.resumed(path)) == 2
    with pytest.raises(SystemExit, match="its source differed from its commit"):
        resumed(commit="c0ffee0+dirty")


def test_a_command_has_the_options_that_were_asked_for() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("--models", "*"), ("--stop-after", 9.0), ("--jobs", 1), ("--output", "here")):
        parser.add_argument(name, default=default, type=type(default))
    asked = parser.parse_args(["--models", "a:*,b c", "--jobs", "2", "--output", "there"])
    assert results.command("x.y", asked, parser, without=("jobs",)) == "x.y --models 'a:*,b c'"
    asked = parser.parse_args(["--stop-after", "3"])
    assert results.command("x.y", asked, parser) == "x.y --stop-after 3.0"


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("never_slower", ["--networks", "alexnet,foo"]),
        ("never_slower", ["--methods", "foo"]),
        ("whole_steps", ["--precisions", "foo,fp32"]),
        ("circulant_layers", ["--groups", "foo"]),
    ],
)
def test_unknown_names_are_refused_before_anything_is_measured(
    module: str, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"benchmarks.{module}").main
    monkeypatch.setattr("sys.argv", [module, *options])
    with pytest.raises(SystemExit, match="2"):
        main()
    error = capsys.readouterr().err
    assert f"argument {options[0]}: expected some of " in error and error.endswith(", got foo\n")
