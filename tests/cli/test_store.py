"""lamina store: check, migrate, merge."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lamina.cli import app
from lamina.record import Run
from lamina.store import open_store

RUNNER = CliRunner()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with open_store(path) as store:
        store.begin(
            Run("abc", "bench", "mlp", "lamina bench mlp", "2026-01-02T03:04:05Z", "f", {}, {"device": "a chip"})
        )
        store.finish("abc", "done", "2026-01-02T03:04:05Z")
    return path


def test_a_merge_copies_each_run_once(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "team.db"
    first = RUNNER.invoke(app, ["store", "merge", str(source), "--into", str(target)])
    assert first.exit_code == 0 and "1 copied" in first.output
    again = RUNNER.invoke(app, ["store", "merge", str(source), "--into", str(target)])
    assert again.exit_code == 0 and "1 already there" in again.output
    with open_store(target) as store:
        assert [run.id for run in store.runs()] == ["abc"]


def test_two_runs_that_differ_end_with_one(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "team.db"
    RUNNER.invoke(app, ["store", "merge", str(source), "--into", str(target)])
    with open_store(source) as store:
        store.finish("abc", "done", "2026-01-02T03:04:05Z", ["a remark"])
    found = RUNNER.invoke(app, ["store", "merge", str(source), "--into", str(target)])
    assert found.exit_code == 1 and "run abc (bench of mlp) differs: the target's stays" in found.output


def test_a_check(source: Path) -> None:
    whole = RUNNER.invoke(app, ["store", "check", str(source)])
    assert whole.exit_code == 0 and "1 runs, no fault" in whole.output


def test_a_damaged_file_is_no_traceback(source: Path) -> None:
    content = bytearray(source.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    source.write_bytes(content)
    found = RUNNER.invoke(app, ["store", "check", str(source)])
    assert found.exit_code in (1, 2) and "Traceback" not in found.output


@pytest.mark.parametrize(
    "command", [["check", "none.db"], ["migrate", "none.db"], ["merge", "none.db", "--into", "x.db"]]
)
def test_a_file_that_is_not_there_is_not_made(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = RUNNER.invoke(app, ["store", *command])
    assert found.exit_code == 2 and "none.db: expected a trace database, got no file" in found.output
    assert not list(tmp_path.iterdir())


def test_a_password_is_never_printed() -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/none"
    for words in (["store", "check", url], ["runs", "ls", "--store", url], ["store", "migrate", url]):
        found = RUNNER.invoke(app, words)
        assert found.exit_code == 3 and "hunter2" not in found.output, found.output


def test_migrating_names_the_schema(source: Path) -> None:
    found = RUNNER.invoke(app, ["store", "migrate", str(source)])
    assert found.exit_code == 0 and "schema 0007" in found.output


def test_reading_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    listed = RUNNER.invoke(app, ["runs", "ls", "--store", str(path)])
    assert listed.exit_code == 0 and not path.exists()


def test_a_grant_needs_roles(source: Path) -> None:
    refused = RUNNER.invoke(app, ["store", "grant", "reports", "--store", str(source), "--dry-run"])
    assert refused.exit_code == 2 and "SQLite has no roles" in refused.output


def test_a_url_of_two_slashes_is_refused(source: Path) -> None:
    ended = RUNNER.invoke(app, ["store", "check", "sqlite://a.db"])
    assert ended.exit_code == 2 and "expected a.db, or sqlite:///a.db with three slashes" in ended.output


def test_a_failed_run_says_why_it_holds_nothing(source: Path) -> None:
    with open_store(source) as store:
        store.begin(Run("def", "bench", "mlp", "lamina bench mlp", "2026-01-02T03:04:05Z", "f", {}, {}))
        store.finish("def", "failed", "2026-01-02T03:04:05Z", ["--batch-size: expected positive whole numbers"])
    shown = RUNNER.invoke(app, ["runs", "show", "def", "--store", str(source)])
    assert "failed) holds nothing: --batch-size: expected positive whole numbers" in shown.output
