"""An interrupted benchmark goes on with its next stage, on the same commit and device only."""

from pathlib import Path

import pytest

from benchmarks import source, stages
from benchmarks.stages import Stages

CLEAN = "1" * 40


def run(output: Path, *, fails: bool = False) -> list[str]:
    """The stages that a run of a benchmark had to do."""
    done: list[str] = []

    def first() -> list[int]:
        done.append("first")
        return [1, 2]

    def second() -> float:
        done.append("second")
        if fails:
            raise KeyboardInterrupt
        return 0.5

    stage = Stages("claim", "cpu", output)
    try:
        assert stage("first", first) == [1, 2] and stage("second", second) == 0.5
    except KeyboardInterrupt:
        return done
    stage.finish()
    return done


def test_finished_stages_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "commit", lambda: CLEAN)
    assert run(tmp_path, fails=True) == ["first", "second"]
    assert run(tmp_path) == ["second"]
    assert [*tmp_path.iterdir()] == [] and run(tmp_path) == ["first", "second"]


@pytest.mark.parametrize("now", ["2" * 40, CLEAN + source.DIRTY])
def test_stages_of_other_code_are_run_again(now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "commit", lambda: CLEAN)
    run(tmp_path, fails=True)
    monkeypatch.setattr(source, "commit", lambda: now)
    assert run(tmp_path) == ["first", "second"]


def test_stages_of_another_device_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "commit", lambda: CLEAN)
    run(tmp_path, fails=True)
    here = stages.measure.environment("cpu")
    monkeypatch.setattr(stages.measure, "environment", lambda device: type("Other", (), {"device": here.device + "!"}))
    assert run(tmp_path) == ["first", "second"]
