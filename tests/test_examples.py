"""The examples are short, and run."""

import runpy
from pathlib import Path

import pytest

from lamina import measure
from lamina.pipeline.deft import deployed

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_says_something(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, few_repetitions: None
) -> None:
    monkeypatch.setattr(deployed, "REPEAT", measure.Repeat(1, 1, 0, 0.01, warmup=0))
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert f"python examples/{path.name}" in text
    runpy.run_path(str(path))  # importing it does nothing
