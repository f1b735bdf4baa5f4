import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lamina.errors import MissingError, UsageError
from lamina.report.palette import LIGHT, PHASES
from lamina.report.png import figure_png

from .records import bench, changed, failed, pick, timed


def pixels(path: Path) -> dict[str, int]:
    """How many pixels have exactly the colour of each phase."""
    image = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    colours = {phase: [int(LIGHT[phase][i : i + 2], 16) for i in (1, 3, 5)] for phase in PHASES}
    return {phase: int((image == colour).all(axis=1).sum()) for phase, colour in colours.items()}


def test_bars_are_as_long_as_times(tmp_path: Path) -> None:
    rows = [timed(row, {"forward": 100, "backward_data": 300, "backward_weight": 200}[row.phase]) for row in bench()]
    rows = [row for row in rows if row.layer in ("conv1", "conv2")]
    area = pixels(figure_png(rows, tmp_path / "a.png", "AlexNet, fp32"))
    assert area["backward_data"] / area["backward_weight"] == pytest.approx(1.5, rel=0.1)
    assert area["backward_data"] / area["forward"] == pytest.approx(3, rel=0.15)


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    rows = bench()
    rows = changed(rows, pick(rows, "conv1"), failed(pick(rows, "conv1")))
    rows = [replace(row, layer=f"{row.layer} $\\frac{{$") for row in rows]
    with Image.open(figure_png(rows, tmp_path / "a.png", "$\\frac{$")) as image:
        assert image.size[0] == 1440


def test_one_setting_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="differ in precision"):
        figure_png([*bench(), *bench("bf16")], tmp_path / "a.png")


def test_something_must_have_a_time(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got 44 without any"):
        figure_png([failed(row) for row in bench()], tmp_path / "a.png")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingError, match=r"lamina\[figures\]"):
        figure_png(bench(), tmp_path / "a.png")
