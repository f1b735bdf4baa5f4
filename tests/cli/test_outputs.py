"""Outputs that cannot be written are refused before the work whose results they are for."""

import os
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

from lamina.cli import options
from lamina.errors import UsageError
from lamina.store import open_store

DATA = ("--data", "fashion-mnist")
COMMANDS = (
    (("bench", "lenet5"), "--report", "file"),
    (("profile", "lenet5"), "--report", "file"),
    (("study", "lenet5", *DATA), "--report", "file"),
    (("study", "lenet5", *DATA), "--output", "folder"),
    (("train", "lenet5", *DATA), "--checkpoint", "file"),
    (("sparsity", "lenet5", *DATA), "--masks", "file"),
    (("deft", "lenet5", *DATA), "--onnx", "file"),
    (("deft", "lenet5", *DATA), "--output", "folder"),
    (("apply", "lenet5", "plan.toml"), "--output", "folder"),
    (("reproduce", "run", "dnnmark-table-5.1"), "--report", "file"),
    (("reproduce", "all", "--format", "json"), "--output", "file"),
    (("sweep", "status"), "--figure", "file"),
    (("runs", "export", "latest"), "--output", "file"),
)


@pytest.mark.parametrize(("words", "option", "kind"), COMMANDS)
def test_an_output_is_checked_before_the_work(
    words: tuple[str, ...], option: str, kind: str, lamina: Lamina, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("kept")
    (tmp_path / "kept.svg").mkdir()
    other = tmp_path / ("notes" if kind == "folder" else "kept.svg")
    for path, said in ((tmp_path / "notes" / "new.svg", "cannot be made, since"), (other, f"name a {kind}")):
        result = lamina(*words, option, str(path))
        assert result.exit_code == 2 and said in result.stderr and option in result.stderr, result.output
    assert (tmp_path / "notes").read_text() == "kept"
    with open_store(tmp_path / "lamina.db") as store:
        assert not store.runs()


def test_what_can_be_written_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options.writable("--output", None)
    options.writable("--output", tmp_path, folder=True)
    options.writable("--output", tmp_path / "new" / "folder", folder=True)
    options.writable("--report", tmp_path / "new" / "x.html")
    options.writable("--report", Path(os.devnull))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=r"--report: no permission to write in .*"):
        options.writable("--report", tmp_path / "x.html")


def test_a_table_goes_to_stdout_only(lamina: Lamina, tmp_path: Path) -> None:
    result = lamina("reproduce", "all", "--output", str(tmp_path / "x.txt"))
    assert result.exit_code == 2 and "--format html or json" in result.stderr
