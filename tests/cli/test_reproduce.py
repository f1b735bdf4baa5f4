"""lamina reproduce: entries that are simulated."""

from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

SMALL = [
    word
    for setting in ("network=lenet5", "layer=features.3", "batch=1", "device.cu.count=2")
    for word in ("--set", setting)
]


def test_the_list_shows_how_each_entry_is_reproduced(lamina: Lamina) -> None:
    listed = lamina("reproduce", "ls").stdout
    for word in ("counted", "measured", "profiled", "changed", "simulated", "not measured"):
        assert word in listed


def test_a_simulated_figure_is_shown_and_found_again(lamina: Lamina) -> None:
    first = lamina("reproduce", "run", "spartan-figure-6.22", "--workers", "1", *SMALL)
    assert first.exit_code == 0, first.output
    assert "Figure 6.22" in first.stdout and "drawn only" in first.stdout and "hit rate rises" in first.stdout
    again = lamina("reproduce", "run", "spartan-figure-6.22", "--workers", "1", *SMALL)
    assert again.stdout == first.stdout
    assert "simulate" in lamina("runs", "ls").stdout


def test_settings_and_what_is_not_measured_need_no_store(lamina: Lamina, tmp_path: Path) -> None:
    table = lamina("reproduce", "run", "spartan-table-6.4")
    assert table.exit_code == 0 and "prefetch buffer" in table.stdout
    overhead = lamina("reproduce", "run", "spartan-table-6.6")
    assert overhead.exit_code == 0 and "not measured" in overhead.stdout and "94.2" in overhead.stdout
    assert not (tmp_path / "lamina.db").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("spartan-figure-6.22", "--run", "latest"), "is simulated: expected only --set"),
        (("spartan-figure-6.22", "--precision", "fp16"), "is simulated: expected only --set"),
        (("dnnmark-table-5.1", "--set", "batch=1"), "are for what is simulated"),
        (("spartan-figure-6.22", "--set", "batch"), "expected KEY=VALUE"),
        (("spartan-figure-6.22", "--set", "bach=4"), "'bach' is unknown: did you mean 'batch'"),
    ],
)
def test_options_that_mean_nothing_are_refused(lamina: Lamina, words: tuple[str, ...], message: str) -> None:
    result = lamina("reproduce", "run", *words)
    assert result.exit_code == 2 and message in result.stderr, result.output


def test_a_point_without_a_result_is_listed(lamina: Lamina) -> None:
    words = [*SMALL, "--set", "device.dram.bytes=20000"]
    result = lamina("reproduce", "run", "spartan-figure-6.22", "--workers", "1", *words)
    assert result.exit_code == 1 and "no result" in result.stderr
