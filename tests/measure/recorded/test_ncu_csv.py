"""A raw page recorded on an H200, and changes to it."""

from pathlib import Path

import pytest

from lamina.errors import SpecError
from lamina.measure.recorded import Recording, from_ncu_csv

TEXT = (Path(__file__).parents[1] / "counters" / "data" / "alexnet_h200.csv").read_text()
NESTED = (Path(__file__).parents[1] / "counters" / "data" / "nested_ranges_h200.csv").read_text()


def recording(text: str) -> Recording:
    return from_ncu_csv(text, text.encode(), "page.csv")


def test_alexnet_on_an_h200():
    found = recording(TEXT)
    assert [(row.layer, row.phase) for row in found.rows] == [
        ("0", "forward"), ("1", "forward"), ("2", "forward"), ("16", "forward"), ("(no range)", "forward"),
        ("21", "backward_data"), ("10", "backward_data"),
    ]  # fmt: skip
    first = found.kernels[0]
    assert (first.grid, first.registers, first.shared_bytes, first.duration_us) == ((1568, 1, 128), 32, 5248, 262.272)
    assert found.rows[0].timing.median_us == pytest.approx(
        sum(one.duration_us for one in found.kernels if one.key == found.rows[0].key)
    )
    assert (found.rows[0].timing.clock, found.rows[0].timing.l2, found.rows[0].timing.kernels) == ("ncu", "cold", 5)
    assert list(found.coverage.strays) == [one.name for one in found.kernels if one.key.layer == "(no range)"]
    assert found.coverage.kernels == 14
    known = found.run.environment
    assert (known["device"], known["compute_capability"], known["sm_count"]) == ("NVIDIA H200", "9.0", 132)
    assert "page.csv" in found.run.command and found.run.verb == "import"


def test_counters_are_the_requested_metrics_and_occupancy_limits():
    counters = [one for one in recording(TEXT).counters if one.invocation == 0 and one.key.layer == "0"]
    values = {one.metric: one.value for one in counters}
    assert values["gpu__time_duration.sum"] == 262_272.0
    assert values["launch__occupancy_limit_registers"] == 8.0
    assert values["smsp__warp_issue_stalled_membar_per_warp_active.pct"] == 0.0
    assert "dram__throughput.avg.pct_of_peak_sustained_elapsed" in values
    assert not {"dram__throughput.max.pct_of_peak_sustained_elapsed", "launch__registers_per_thread"} & set(values)


def test_a_metric_that_lamina_does_not_know_is_kept():
    text = TEXT.replace('"sm__inst_issued', '"x').replace("lts__t_sector_hit_rate.pct", "lts__brand_new.ratio")
    assert "lts__brand_new.ratio" in {one.metric for one in recording(text).counters}


def test_ranges_of_any_program():
    found = recording(NESTED.replace("lamina/", "step/"))
    assert [(row.layer, row.phase) for row in found.rows] == [("inner", "forward"), ("step/9", "backward_data")]
    assert found.rows[0].timing.l2 == "warm"


def test_without_ranges_there_is_one_layer():
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("==")).replace(":lamina/", ":")
    lines = text.splitlines()
    plain = [line if at < 2 else _without_ranges(line) for at, line in enumerate(lines)]
    found = recording("\n".join(plain))
    (row,) = found.rows
    assert (row.layer, row.timing.kernels, row.timing.l2) == ("(no range)", 15, "-")
    assert found.coverage.share == 1.0 and found.coverage.strays == {}
    assert found.run.remarks


def _without_ranges(line: str) -> str:
    before, name, after = line.partition(',"void')
    if not name:
        before, name, after = line.partition(',"sm')
    return before.split(",")[0] + ',"",""' + name + after


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n".join(TEXT.splitlines()[:5]), "expected kernels below the columns, got none"),
        (TEXT.replace("gpu__time_duration", "gpu__no_time"), "expected durations: profile with --metrics"),
        (TEXT.replace('"262,272"', '"n/a"'), "line 6: expected a number under gpu__time_duration.sum"),
        (TEXT[:-100], "line 20: the line is truncated"),
    ],
)
def test_invalid_profiles(text, words):
    with pytest.raises(SpecError, match=words):
        recording(text)
