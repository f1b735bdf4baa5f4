"""Statements in recorded profiles: of the paper's own network, on each GPU, and what is missing."""

from dataclasses import replace

import pytest

from lamina.pipeline.explain import Side
from lamina.pipeline.reproduce import reproduce_recorded
from lamina.pipeline.reproduce.stored import checked_on, recorded_sides
from lamina.record import Timing
from lamina.spec.published import entry

ALEXNET = "dnnmark-alexnet-227"


@pytest.fixture(scope="module")
def side() -> Side:
    return recorded_sides(entry("icpe18-figure-5.7"))[-1]


def slower(side: Side, factors: dict[str, float], device: str = "Example GPU") -> Side:
    """The same profile on another GPU, on which some layer kinds take longer."""

    def scaled(timing: Timing | None, by: float) -> Timing | None:
        return timing and replace(
            timing, median_us=timing.median_us * by, q1_us=timing.q1_us * by, q3_us=timing.q3_us * by
        )

    run = replace(side.run, environment={**side.run.environment, "device": device})
    rows = tuple(replace(row, timing=scaled(row.timing, factors.get(row.kind, 1.5))) for row in side.rows)
    return Side(run, rows, side.kernels, side.counters)


@pytest.mark.parametrize(
    ("name", "network", "device"),
    [
        ("icpe18-figure-5.3", "alexnet-227", "H200"),
        ("icpe18-figure-5.12", "alexnet-227", "H100"),
        ("dnnmark-figure-4.4", "primitives", "H100"),
    ],
)
def test_the_papers_own_networks_in_fp32_are_judged(name: str, network: str, device: str) -> None:
    done = reproduce_recorded(entry(name))
    assert f"recorded profile of dnnmark-{network} in fp32 on" in done.source and device in done.source
    assert all(row.agrees is not None for row in done.rows)


def test_networks_of_other_papers_have_recordings_of_their_own() -> None:
    assert "recorded profile of alexnet in tf32" in reproduce_recorded(entry("deftnn-figure-2")).source


def test_phases_without_counters_are_named(side: Side) -> None:
    full = Side(side.run, side.rows, side.kernels, side.counters)
    partly = replace(full, counters=tuple(one for one in side.counters if one.key[:2] != ("lrn1", "forward")))
    (row, *_) = checked_on(entry("icpe18-figure-5.7"), [partly])
    assert "lrn1 forward" in row.value.note and row.value.note.startswith("no counters of ")
    assert row.agrees is True
    (times, *_) = checked_on(entry("icpe18-figure-5.3"), [partly])
    assert times.value.note == ""  # the figure shows no counters
    (uncounted, *_) = checked_on(entry("icpe18-figure-5.7"), [replace(full, counters=())])
    assert uncounted.agrees is None and "counters of" not in uncounted.value.note


def test_each_gpu_has_a_row(side: Side) -> None:
    other = slower(side, {})
    it = entry("icpe18-figure-5.9")
    rows = checked_on(it, [side, other])
    assert len(rows) == 2 * len(it.statements)
    assert [row.value.layer for row in rows[:2]] == [f"{it.statements[0].about}, {name}" for name in (
        side.run.environment["device"], "Example GPU"
    )]  # fmt: skip


def test_two_gpus_are_compared_the_faster_over_the_slower(side: Side) -> None:
    it = entry("icpe18-figure-5.5")
    (alone, *_) = checked_on(it, [side])
    assert alone.agrees is None and "another is missing" in alone.ours
    more = slower(side, {"convolution": 3.0, "linear": 3.0, "pooling": 3.0})
    (held, *_) = checked_on(it, [more, side])
    device = side.run.environment["device"]
    assert held.agrees is True and held.ours.startswith(f"{device} over Example GPU: convolution 3.00x")
    (failed, *_) = checked_on(it, [side, slower(side, {"activation": 3.0})])
    assert failed.agrees is False
