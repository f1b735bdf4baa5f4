"""lamina reproduce: entries that are simulated."""

from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Lamina

from lamina.spec.published import entries

SMALL = [
    word
    for setting in ("network=lenet5", "layer=features.3", "batch=1", "device.cu.count=2")
    for word in ("--set", setting)
]


def test_the_list_shows_how_each_entry_is_reproduced(lamina: Lamina) -> None:
    listed = lamina("reproduce", "ls").stdout
    for word in ("counted", "measured", "profiled", "changed", "simulated", "not applicable"):
        assert word in listed


def test_a_simulated_figure_is_shown_and_found_again(lamina: Lamina) -> None:
    first = lamina("reproduce", "run", "spartan-figure-6.22", "--workers", "1", *SMALL)
    assert first.exit_code == 0, first.output
    assert "Figure 6.22" in first.stdout and "drawn only" in first.stdout and "hit rate rises" in first.stdout
    again = lamina("reproduce", "run", "spartan-figure-6.22", "--workers", "1", *SMALL)
    assert again.stdout == first.stdout
    assert "simulate" in lamina("runs", "ls").stdout


def test_settings_and_recorded_rows_need_no_store(lamina: Lamina, tmp_path: Path) -> None:
    table = lamina("reproduce", "run", "spartan-table-6.4")
    assert table.exit_code == 0 and "prefetch buffer" in table.stdout
    overhead = lamina("reproduce", "run", "spartan-table-6.6")
    assert overhead.exit_code == 0 and "94.2" in overhead.stdout and "by lamina's kernel" in overhead.stdout
    assert "ours: recorded on NVIDIA H200, 2026-11-28 at commit 30c790e" in overhead.stdout
    assert "verdict: not reproduced: 2 of 10" in overhead.stdout
    figure = lamina("reproduce", "run", "spartan-figure-6.22", "--recorded")
    assert figure.exit_code == 0 and "ours: simulated on " in figure.stdout
    assert not (tmp_path / "lamina.db").stat().st_size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("spartan-figure-6.22", "--run", "latest"), "is simulated: expected only --set"),
        (("spartan-figure-6.22", "--precision", "fp16"), "is simulated: expected only --set"),
        (("dnnmark-table-5.1", "--set", "batch=1"), "are for what is simulated"),
        (("spartan-table-6.6", "--repeat", "2"), "--repeat: spartan-table-6.6 takes only --device, --quick"),
        (("spartan-table-6.6", "--quick", "--recorded"), "expected one of them"),
        (("spartan-figure-6.22", "--quick"), "is simulated"),
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


def test_every_entry_has_a_line_and_a_measured_row_or_a_reason(lamina: Lamina, tmp_path: Path) -> None:
    page = tmp_path / "reproduced.html"
    result = lamina("reproduce", "all", "--format", "html", "-o", str(page))
    assert result.exit_code == 0, result.output
    assert "0 entries without a measured row" in result.stdout and "counted apart" in result.stdout
    text = page.read_text(encoding="utf-8")
    for entry in entries():
        assert f'id="{entry.id}"' in text
    assert "//" not in text.partition("<body>")[2].replace("</", "") and "<script" not in text


def test_a_format_that_is_none_is_refused(lamina: Lamina) -> None:
    result = lamina("reproduce", "all", "--format", "pdf")
    assert result.exit_code == 2 and "expected" in result.stderr


def test_what_needs_a_gpu_is_shown_with_recorded_rows(lamina: Lamina) -> None:
    counters = lamina("reproduce", "run", "circulant-table-7.5", "--quick", "--device", "cpu")
    assert counters.exit_code == 0, counters.output
    assert "circulant-table-7.5 needs a GPU" in counters.stderr and "recorded rows are shown" in counters.stderr
    assert "ours: recorded on NVIDIA H200" in counters.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it is profiled")
def test_profiles_are_shown_where_there_is_no_gpu(lamina: Lamina) -> None:
    figure = lamina("reproduce", "run", "icpe18-figure-5.9")
    assert figure.exit_code == 0, figure.output
    assert "icpe18-figure-5.9 needs a GPU: a recorded profile is shown" in figure.stderr
    assert "ours: recorded profile of dnnmark-alexnet-227 in fp32 on" in figure.stdout
    assert "verdict: reproduced" in figure.stdout
