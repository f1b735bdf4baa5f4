"""The commit of a benchmark's source."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import source
from benchmarks.source import commit  # the function itself, which other tests replace

ARCHIVED = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of one file."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "source.py").write_text("one\n")
    monkeypatch.setattr(source, "ROOT", tmp_path)
    (tmp_path / "src" / "lamina").mkdir(parents=True)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@nowhere.example"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_checkout_tells_its_commit_and_whether_the_source_differs(folder: Path) -> None:
    git(folder, "init", "-q")
    (folder / "benchmarks" / "results").mkdir()
    (folder / "benchmarks" / "results" / "a.json").write_text("{}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "One")
    head = git(folder, "rev-parse", "HEAD")
    assert commit() == head
    (folder / "benchmarks" / "results" / "a.json").write_text("[]\n")
    assert commit() == head, "results are no source"
    (folder / "benchmarks" / "source.py").write_text("two\n")
    assert commit() == head + "+dirty"


def test_an_archive_names_its_commit(folder: Path) -> None:
    (folder / "src" / "lamina" / "COMMIT").write_text(f"{ARCHIVED}\n")
    assert commit() == ARCHIVED


def test_other_files_are_refused(folder: Path) -> None:
    (folder / "src" / "lamina" / "COMMIT").write_text("$Format:%H$\n")
    with pytest.raises(SystemExit, match="a result needs its commit"):
        commit()


def test_git_archive_writes_the_commit(tmp_path: Path) -> None:
    root = Path(source.__file__).parents[1]
    if not (root / ".git").exists():
        pytest.skip("no checkout")
    archive = tmp_path / "one.tar"
    git(root, "archive", "-o", str(archive), "HEAD", "src/lamina/COMMIT", ".gitattributes")
    subprocess.run(["tar", "xf", str(archive), "-C", str(tmp_path)], check=True)
    assert (tmp_path / "src" / "lamina" / "COMMIT").read_text().strip() == git(root, "rev-parse", "HEAD")
