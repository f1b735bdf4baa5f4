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


def test_what_can_be_written_passes_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options.writable("--output", None)
    options.writable("--output", tmp_path, folder=True)
    options.writable("--output", tmp_path / "new" / "folder", folder=True)
    options.writable("--report", tmp_path / "new" / "x.html")
    options.writable("--report", Path(os.devnull))
    assert not [*tmp_path.iterdir()]

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(options, "TemporaryFile", refuse)
    with pytest.raises(UsageError, match=r"--report: cannot write in .* \(Permission denied\): name another file"):
        options.writable("--report", tmp_path / "x.html")


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="a file system that nobody may write to")
@pytest.mark.parametrize("path", ["/proc/x.html", "/proc/none/x.html", "/proc/version"])
def test_a_place_that_refuses_even_root_is_found_at_once(path: str) -> None:
    with pytest.raises(UsageError, match="--report: cannot write .*/proc"):
        options.writable("--report", Path(path))


def test_a_table_goes_to_stdout_only(lamina: Lamina, tmp_path: Path) -> None:
    result = lamina("reproduce", "all", "--output", str(tmp_path / "x.txt"))
    assert result.exit_code == 2 and "--format html or json" in result.stderr
