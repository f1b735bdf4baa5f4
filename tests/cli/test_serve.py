"""lamina serve, as a user types it."""

from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

from lamina.pipeline.serve import Server


def test_it_names_the_address_and_ends_with_ctrl_c(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", interrupted)
    monkeypatch.delenv("LAMINA_DB")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    done = lamina("serve", "--port", "0")
    assert done.exit_code == 130 and "is shown at http://127.0.0.1:" in done.stderr
    assert not (tmp_path / "data").exists()


def test_wrong_words_exit_two(lamina: Lamina) -> None:
    assert lamina("serve", "--port", "70000").exit_code == 2
    taken = lamina("serve", "--store", ":memory:", "--host", "203.0.113.1", "--port", "0")
    assert taken.exit_code == 2 and "cannot be had" in taken.stderr


def test_tables_need_datasette_and_a_file(lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "runs.db").touch()
    missing = lamina("serve", "--tables", "--store", str(tmp_path / "runs.db"))
    assert missing.exit_code == 3 and "pip install 'lamina[server]'" in missing.stderr
    assert lamina("serve", "--tables", "--store", str(tmp_path / "none.db")).exit_code == 2
    assert "Datasette reads SQLite" in lamina("serve", "--tables", "--store", "postgresql://a@b/c").stderr
