"""Kernels end to end, and by the time they take."""

from dataclasses import replace
from itertools import pairwise

import pytest

from lamina.record import KernelRun
from lamina.report.figures.timeline import merged, ordered

from .reading import KERNELS, ROWS, bars, draw, made, reason

MATERIAL = made()
(SCENE, *_) = (MATERIAL.scene(setting) for setting in MATERIAL.settings)
ORDER = ["conv2 forward", "relu2 forward", "relu3 forward", "relu3 backward_data", "relu2 backward_data"]
ORDER += ["conv2 backward_data", "conv2 backward_weight"]


def mine(batch: int = 16) -> list[KernelRun]:
    return [it for it in KERNELS if it.key.batch == batch]


def test_a_step_goes_forward_and_back() -> None:
    assert [f"{row.layer} {row.phase}" for row in ordered(SCENE)] == ORDER


def test_kernels_lie_end_to_end_in_the_order_of_the_step() -> None:
    plot = draw("timeline", MATERIAL)
    marks = sorted(
        (base, length, text)
        for trace in plot["data"]
        for base, length, text in zip(trace["base"], trace["x"], trace["customdata"], strict=True)
    )
    for (base, length, _), (following, _, _) in pairwise(marks):
        assert base + length == pytest.approx(following)
    places = [ORDER.index(text.split("<br>")[0].replace("<b>", "").replace("</b>", "")) for _, _, text in marks]
    assert places == sorted(places)
    assert len(marks) == len(mine())
    assert sum(length for _, length, _ in marks) == pytest.approx(sum(it.duration_us for it in mine()))
    assert plot["layout"]["xaxis"]["title"]["text"] == "time in kernels, µs"


def test_one_phase_has_one_lane() -> None:
    plot = draw("timeline", MATERIAL, phase="backward_weight")
    assert plot["layout"]["yaxis"]["ticktext"] == ["backward_weight"]
    assert len(plot["data"][0]["x"]) == 2


def test_many_kernels_are_put_together_within_their_row_and_it_is_said() -> None:
    many = [
        replace(it, invocation=place, duration_us=1.0)
        for it in KERNELS
        if it.invocation == 0 and it.key.batch == 16
        for place in range(500)
    ]
    plot = draw("timeline", made(kernels=many, counters=[]))
    marks = sum(len(trace["x"]) for trace in plot["data"])
    assert marks < 900
    assert f"({len(many):,} kernels in {marks:,} marks)" in plot["layout"]["xaxis"]["title"]["text"]
    drawn = sum(sum(trace["x"]) for trace in plot["data"])
    assert drawn == pytest.approx(len(many) / 1e3)  # in ms
    assert "kernels, the first" in plot["data"][0]["customdata"][0]


def test_long_kernels_stay_apart_among_short_ones() -> None:
    row = next(row for row in ROWS if row.layer == "conv2")
    base = KERNELS[0]
    times = [1.0] * 50 + [1000.0] + [1.0] * 50
    launches = [replace(base, invocation=place, duration_us=us) for place, us in enumerate(times)]
    marks = merged([(row, launches)], most=10)
    assert [mark.us for mark in marks] == [50.0, 1000.0, 50.0]
    assert [mark.begin_us for mark in marks] == [0.0, 50.0, 1050.0]
    assert [mark.kernels for mark in marks] == [50, 1, 50]


def test_kernels_of_one_name_are_added_up() -> None:
    renamed = [replace(it, name="gemm" if it.key.layer == "conv2" else it.name) for it in KERNELS]
    found = bars(draw("kernels", made(kernels=renamed, counters=[])))
    expected = [it.duration_us for it in mine() if it.key.layer == "conv2"]
    assert found["time", f"gemm ×{len(expected)}"] == pytest.approx(sum(expected))
    assert [*found.values()] == sorted(found.values(), reverse=True)


def test_beyond_twenty_kernels_the_others_stand_together() -> None:
    many = [
        replace(KERNELS[0], name=f"kernel{place}", invocation=place, duration_us=100.0 - place) for place in range(30)
    ]
    found = bars(draw("kernels", made(kernels=many, counters=[])))
    assert len(found) == 21
    assert found["time", "10 others ×10"] == pytest.approx(sum(100.0 - place for place in range(20, 30)))


@pytest.mark.parametrize("figure", ["timeline", "kernels"])
def test_a_run_without_kernels_says_so(figure: str) -> None:
    assert "has no kernels" in reason(figure, made(kernels=[], counters=[]))
