"""Workload files by their endings, and what is no workload file at all."""

import os
from pathlib import Path

import pytest

from lamina.errors import SpecError, UsageError
from lamina.spec import Workload, read

DNNMARK = "[Pooling]\nn=2\nc=1\nh=8\nw=$W\n"
TOML = 'input = {shape = [4]}\n[[layer]]\ntype = "bypass"\n[workload]\nseed = 3\n'


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def test_each_kind_by_its_ending(tmp_path: Path) -> None:
    for name, text in (("a.dnnmark", DNNMARK), ("a.dnntemplate", DNNMARK), ("a.toml", TOML)):
        path = tmp_path / name
        path.write_text(text)
        network, workload = read(path, {"W": "8"} if text == DNNMARK else {"batch": "7"})
        assert network.name == "a"
        assert (network.batch, workload) == ((2, Workload()) if text == DNNMARK else (7, Workload(seed=3)))


def test_byte_order_marks_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TOML.replace("\n", "\r\n").encode())
    assert read(path)[1].seed == 3


@pytest.mark.parametrize("name", ["a.yaml", "a", ".toml", "a.TOML"])
def test_other_endings(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TOML)
    assert "expected a file ending in .toml, .dnnmark, .dnntemplate" in refused(tmp_path / name)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "a.toml")
    (tmp_path / "b.toml").mkdir()
    assert "got a folder" in refused(tmp_path / "b.toml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").touch(mode=0)
    assert "cannot be read: Permission denied" in refused(tmp_path / "a.toml")


def test_a_file_too_large(tmp_path: Path) -> None:
    with (tmp_path / "a.toml").open("wb") as file:
        file.truncate(16 * 2**20 + 1)
    assert "at most 16 MiB" in refused(tmp_path / "a.toml")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.dnnmark").write_bytes(b"[Pooling]\nn=\xff\n")
    with pytest.raises(SpecError, match="line 2: expected UTF-8 text, got byte 0xff"):
        read(tmp_path / "a.dnnmark")
