"""A command line to test: run in this process, with its own store and cache."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from typer.testing import CliRunner, Result

from lamina.cli import app

Lamina = Callable[..., Result]

typer.testing._get_command = cache(typer.testing._get_command)  # Typer makes all commands again at each call


@pytest.fixture
def lamina(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_repetitions: None) -> Lamina:
    """``lamina("bench", "lenet5")`` runs the command and answers what it printed and its exit code."""
    from lamina import measure
    from lamina.record import Roofs

    roofs = Roofs("test", "2026-01-01", 1, {"torch": "0"}, 10.0, 8.0, {"fp32": 100.0}, 5.0, 5.0)
    monkeypatch.setattr(measure, "roofs", lambda device, cache_dir, refresh=False: roofs)
    (tmp_path / "lamina.db").touch()  # an empty database: commands that read refuse a named file that is not there
    monkeypatch.setenv("LAMINA_DB", str(tmp_path / "lamina.db"))
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "cache"))
    runner = CliRunner()

    def run(*words: str) -> Result:
        return runner.invoke(app, list(words))

    return run
