"""lamina store: check, migrate, merge."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lamina.cli import app, options
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


@pytest.mark.parametrize("words", [["check"], ["migrate"], ["merge", "--into", "x.db"]], ids=" ".join)
@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_an_empty_file_is_no_whole_database(words: list[str], scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    found = RUNNER.invoke(app, ["store", *words, f"{scheme}{path}"])
    assert found.exit_code == 2 and "empty.db: expected a trace database, got an empty file; restore" in found.output
    assert not path.stat().st_size


@pytest.mark.parametrize(
    "command",
    [
        ["check", "none.db"],
        ["check", "sqlite:///none.db"],
        ["migrate", "none.db"],
        ["merge", "none.db", "--into", "x.db"],
    ],
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
    default = {"LAMINA_DB": "", "XDG_DATA_HOME": str(tmp_path)}
    for words in (["runs", "ls"], ["sweep", "status"]):
        listed = RUNNER.invoke(app, words, env=default)
        assert listed.exit_code == (2 if words[0] == "sweep" else 0) and not [*tmp_path.iterdir()]


READING = (
    *(("runs", "ls"), ("runs", "show"), ("runs", "export"), ("runs", "sql", "SELECT 1"), ("runs", "diff", "a", "b")),
    *(("runs", "rm", "a"), ("report",), ("explain",), ("compare", "a", "b"), ("serve",), ("sweep", "status")),
)
"""Commands that read a database."""


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_named_file_that_is_not_there_or_a_folder_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    for text in (str(path), f"sqlite:///{path}"):
        named = RUNNER.invoke(app, [*words, "--store", text])
        assert named.exit_code == 2 and f"--store: {path} does not exist" in named.output
    found = RUNNER.invoke(app, [*words], env={"LAMINA_DB": str(path)})
    assert found.exit_code == 2 and f"LAMINA_DB: {path} does not exist" in found.output
    folder = RUNNER.invoke(app, [*words, "--store", str(tmp_path)])
    assert folder.exit_code == 2 and "expected a database file, got a folder; name a file in it" in folder.output
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("words", [["check"], ["migrate"], ["merge", "--into", "x.db"]], ids=" ".join)
def test_a_folder_is_no_database(words: list[str], tmp_path: Path) -> None:
    found = RUNNER.invoke(app, ["store", *words, str(tmp_path)])
    assert found.exit_code == 2 and f"{tmp_path}: expected a database file, got a folder" in found.output


def test_the_other_database_exists_too(source: Path) -> None:
    here = ["--store", str(source)]
    compared = RUNNER.invoke(app, ["compare", "abc", "abc", *here, "--other-store", "typo.db"])
    assert compared.exit_code == 2 and "--other-store: typo.db does not exist" in compared.output
    reported = RUNNER.invoke(app, ["report", "abc", *here, "--against", "abc", "--against-store", "typo.db"])
    assert reported.exit_code == 2 and "--against-store: typo.db does not exist" in reported.output


def test_memory_and_a_server_are_no_files() -> None:
    for url in (":memory:", "sqlite://", "postgresql://me@host/name"):
        assert options.stored_url(url) == url


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
