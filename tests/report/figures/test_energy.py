"""The figure of energy: joules by layer and phase, and the reason where none was measured."""

from dataclasses import replace

from tests.report.figures.reading import made
from tests.report.records import bench, timed

from lamina.report.figures import FIGURES, STEP

ROWS = [timed(row, 10.0) for row in bench()]


def drawn(joules: dict[tuple[str, str], float], phase: str = STEP):  # type: ignore[no-untyped-def]
    rows = [replace(row, energy_j=joules.get((row.layer, row.phase))) for row in ROWS]
    material = made(rows)
    return FIGURES["energy"].figure(material.scene(next(iter(material.settings)), phase))


def test_each_phase_is_a_series_of_its_layers_joules() -> None:
    found = drawn({("conv1", "forward"): 0.8, ("conv1", "backward_weight"): 0.9, ("relu1", "forward"): 0.05})
    assert found.plot is not None
    bars = {one["name"]: one for one in found.plot["data"] if one.get("name") and one["type"] == "bar"}
    assert {"forward", "backward weight"} <= bars.keys() and "backward data" not in bars
    values = [value for value in bars["forward"]["x"] if value]
    assert max(values) / min(values) == 16.0
    assert "mJ" in str(found.plot) or "J" in str(found.plot)


def test_without_energy_the_figure_says_how_to_get_it() -> None:
    assert drawn({}).plot is None and "--energy" in drawn({}).reason


def test_a_phase_that_does_not_run_is_no_gap_in_a_layers_sum() -> None:
    found = drawn({("relu1", "forward"): 0.25, ("relu1", "backward_data"): 0.5})  # it has no weights
    assert found.plot is not None and "750 mJ" in str(found.plot)
