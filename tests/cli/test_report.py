"""lamina report, as a person types it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina
from tests.report.records import ROOFS, profile, run

from lamina.report.figures import FIGURES
from lamina.store import open_store


def fill(store_path: str, run_id: str) -> None:
    rows, kernels, counters = profile()
    with open_store(store_path) as store:
        store.begin(replace(run(), id=run_id, verb="profile"))
        for row in rows:
            store.add(run_id, row)
        store.add_roofs(run_id, ROOFS)
        store.add_kernels(run_id, kernels)
        store.add_counters(run_id, counters)


@pytest.fixture
def stored(lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lamina:
    fill(os.environ["LAMINA_DB"], "first")
    monkeypatch.chdir(tmp_path)
    return lamina


def test_a_page_by_default(stored: Lamina, tmp_path: Path) -> None:
    result = stored("report", "latest", "--assets", "dir")
    assert result.exit_code == 0, result.output
    assert result.stdout == "report.html\n"
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("deep/b.svg", b"<?xml")])
def test_a_figure_as_an_image(stored: Lamina, tmp_path: Path, name: str, begins: bytes) -> None:
    result = stored("report", "--figure", "stalls", "--phase", "forward", "--batch-size", "16", "-o", name)
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert not (tmp_path / "report.html").exists()


def test_a_figure_has_a_name_of_its_own(stored: Lamina, tmp_path: Path) -> None:
    assert stored("report", "--figure", "kernels").stdout == "kernels.png\n"
    assert (tmp_path / "kernels.png").exists()


def test_figures_are_listed_without_a_database(lamina: Lamina) -> None:
    result = lamina("report", "--list-figures")
    assert result.exit_code == 0
    first = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert [word for word in first if word in FIGURES] == list(FIGURES)
    assert not Path(os.environ["LAMINA_DB"]).stat().st_size


def test_against_a_run_of_another_database(stored: Lamina, tmp_path: Path) -> None:
    fill("other.db", "second")
    result = stored("report", "first", "--against", "second", "--against-store", "other.db", "--assets", "dir")
    assert result.exit_code == 0, result.output
    assert "(run second)" in (tmp_path / "report.html").read_text()
    assert stored("report", "first", "-f", "speedup", "--against", "first").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--figure", "stals"], "did you mean 'stalls'"),
        (["--figure", "stalls", "-o", "a.pdf"], "ends in .png or .svg"),
        (["--phase", "forward"], "choose what a --figure shows"),
        (["--against-store", "other.db"], "no such run was named"),
        (["--assets", "cdn"], "--assets"),
        (["--figure", "stalls", "--against", "nobody"], "nobody"),
    ],
)
def test_wrong_options_are_refused(stored: Lamina, words: list[str], message: str) -> None:
    result = stored("report", "latest", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
