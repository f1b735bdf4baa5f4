"""Times side by side: batch sizes, shares, speedups."""

from dataclasses import replace

import pytest

from lamina.explain import compare, shares
from lamina.record import LayerRun
from lamina.report.figures import FIGURES, STEP, Material
from lamina.report.layers import MOST

from ..convnext import GPU_US, convnext
from ..records import ROOFS, bench, failed, timed
from .reading import ROWS, bars, draw, made, reason

MATERIAL = made()


def spent(rows: list[LayerRun], phase: str = STEP) -> float:
    return sum(row.timing.median_us for row in rows if row.timing and phase in (STEP, row.phase))


@pytest.mark.parametrize("phase", [STEP, "forward", "backward_data"])
def test_each_batch_size_has_a_bar(phase: str) -> None:
    found = bars(draw("batches", MATERIAL, phase=phase))
    for batch in (16, 64):
        rows = [row for row in ROWS if row.layer == "conv2" and row.batch == batch]
        assert found[f"batch {batch}", "conv2"] == pytest.approx(spent(rows, phase))


def test_one_batch_size_has_nothing_beside_it() -> None:
    assert "nothing to compare it with" in reason("batches", Material([row for row in ROWS if row.batch == 16]))


@pytest.mark.parametrize("phase", [STEP, "backward_weight"])
def test_shares_of_kinds_add_up(phase: str) -> None:
    found = bars(draw("share", MATERIAL, phase=phase))
    for batch in (16, 64):
        rows = [row for row in ROWS if row.batch == batch]
        convolutions = [row for row in rows if row.kind == "convolution"]
        expected = 100 * spent(convolutions, phase) / spent(rows, phase)
        assert found["convolution", f"batch {batch}"] == pytest.approx(expected)
        assert sum(part for (_, row), part in found.items() if row == f"batch {batch}") == pytest.approx(100)


def test_many_kinds_share_what_is_left_over() -> None:
    rows = [replace(row, kind=f"kind{row.place}") for row in bench()]
    found = bars(draw("share", Material(rows), 128))
    kinds = {kind for kind, _ in found}
    assert len(kinds) == 8
    assert "other kinds" in kinds
    assert sum(found.values()) == pytest.approx(100)


def test_speed_up_is_the_other_time_over_this_one() -> None:
    slower = [timed(row, 3 * row.timing.median_us) if row.timing and row.layer == "conv2" else row for row in ROWS]
    of = replace(MATERIAL, comparisons=compare(slower, ROWS), against="another GPU")
    plot = draw("speedup", of, 64)
    layers = plot["layout"]["yaxis"]["ticktext"]
    marks = [trace for trace in plot["data"] if trace["mode"] == "markers"]
    assert [trace["name"] for trace in marks] == ["forward", "backward_data", "backward_weight"]
    found = {
        (trace["name"], layers[round(y)]): (x, symbol)
        for trace in marks
        for x, y, symbol in zip(trace["x"], trace["y"], trace["marker"]["symbol"], strict=True)
    }
    assert found["backward_weight", "conv2"] == (pytest.approx(3.0), "circle")
    assert found["forward", "relu2"] == (pytest.approx(1.0), "circle-open")
    assert len(plot["data"][1]["x"]) == sum(row.phase == "forward" and row.batch == 64 for row in ROWS) - 1


def test_a_speed_up_needs_another_run_and_a_partner() -> None:
    assert "--against" in reason("speedup", MATERIAL)
    strangers = [replace(row, layer=f"other {row.layer}") for row in ROWS]
    of = replace(MATERIAL, comparisons=compare(strangers, ROWS), against="another network")
    assert reason("speedup", of) == "no phase here has a partner in another network"


@pytest.mark.parametrize("figure", ["time", "share", "batches"])
def test_nothing_is_drawn_without_times(figure: str) -> None:
    assert reason(figure, Material([failed(row) for row in ROWS])) == "nothing has a time"


def test_a_large_network_has_legible_figures() -> None:
    rows = convnext()
    material = Material(rows, ROOFS, shares=shares(rows), kernels={row.key: [] for row in rows})
    scene = material.scene(())
    time = FIGURES["time"].figure(scene).plot
    assert time and len(time["layout"]["yaxis"]["ticktext"]) == 43
    assert time["layout"]["xaxis"]["title"]["text"] == "time, µs (155 layers in 43 bars)"
    total = sum(value for trace in time["data"] if trace["type"] == "bar" for value in trace["x"])
    assert total == pytest.approx(GPU_US)  # no layer is lost
    assert len(scene.layers) == 155 and len(scene.shown) == MOST
    longest = sorted(scene.layers, key=lambda layer: -spent(list(scene.layers[layer].values())))
    assert set(scene.shown) == set(longest[:MOST])
    places = [next(iter(of.values())).place for of in scene.shown.values()]
    assert places == sorted(places)


def test_figures_of_some_layers_say_so() -> None:
    rows = [replace(row, peak_bytes=10**9, live_bytes=10**8) for row in convnext()]
    drawn = FIGURES["allocated"].figure(Material(rows).scene(()))
    assert drawn.caption.endswith("Shown are the 60 slowest of 155 layers.")
    assert drawn.plot and len(drawn.plot["layout"]["yaxis"]["ticktext"]) == MOST
    few = FIGURES["allocated"].figure(Material(rows[:30]).scene(()))
    assert "Shown are" not in few.caption
