"""How commands end when something goes wrong that nobody foresaw."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

from lamina import pipeline


def test_an_unexpected_error_is_one_message_and_a_file(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, watch: object, **__: object) -> None:
        watch(pipeline.Planned("lenet5", "dense fp32 nchw batch 2", 27))  # type: ignore[operator]
        raise IndexError("index 3 is out of bounds\nand more lines")

    monkeypatch.setattr(pipeline, "bench", fail)
    result = lamina("bench", "lenet5", "--device", "cpu")
    assert result.exit_code == 70 and "Traceback" not in result.output
    message = " ".join(result.stderr.split())
    assert "unexpected IndexError" in message
    assert "(lenet5: dense fp32 nchw batch 2): index 3 is out of bounds" in message
    (file,) = (tmp_path / "cache" / "errors").iterdir()
    assert str(file) in result.stderr
    text = file.read_text()
    assert "Traceback" in text and "and more lines" in text and "lamina 0." in text and "PyTorch" in text


def test_a_traceback_goes_elsewhere_where_the_cache_cannot_be_written(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    (tmp_path / "file").touch()
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(pipeline, "find", fail)
    result = lamina("bench", "lenet5", "--device", "cpu")
    assert result.exit_code == 70 and f"{tmp_path}/error-" in result.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    shell = f"{sys.executable} -m lamina bench resnet152 --dry-run --format json | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout == "[\n" and "Traceback" not in done.stderr and "unexpected" not in done.stderr


def test_an_error_outside_of_commands_has_no_traceback() -> None:
    code = (
        "import sys, lamina.cli as cli; sys.argv[1:] = []\n"
        "def app(): raise ZeroDivisionError('by zero')\n"
        "cli.app = app; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "ZeroDivisionError" in done.stderr and "Traceback" not in done.stderr
