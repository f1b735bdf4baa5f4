"""The pages of evidence say what the results files say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "make_evidence.py"))


def test_pages_are_in_step_with_the_results() -> None:
    pages = TOOL["pages"]()
    written = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "evidence").glob("*.md")}
    assert written == pages, "run: python tools/make_evidence.py"


def test_a_page_shows_each_layer_and_phase_once() -> None:
    row = {"precision": "fp32", "layout": "nchw", "impl": "dense", "timing": "cupti", "l2": "warm"}
    rows = [
        row | {"layer": "conv1", "phase": "forward", "median_us": 12.34},
        row | {"layer": "conv1", "phase": "forward", "median_us": 99.0, "l2": "cold"},
        row | {"layer": "conv1", "phase": "forward", "median_us": 5.0, "precision": "bf16"},
        row | {"layer": "conv1", "phase": "backward_weight", "median_us": 7.0},
    ]
    table = list(TOOL["layers"](rows))
    assert table[-2:] == ["| conv1 | forward | 12.3 | 5.0 |", "| conv1 | backward_weight | 7.0 | - |"]


def test_a_page_of_changes_pairs_what_was_with_what_is() -> None:
    common = {"workload": "net", "change": "fusion", "detail": "relu", "layer": "fc", "phase": "step"}
    gains = {"predicted_gain": 0.5, "measured_gain": 1.0, "miss": "1.0 us shorter than predicted"}
    alone = common | gains | {"impl": "dense", "median_us": 3.0, "change": "precision"}  # was not executed
    both = [common | gains | {"impl": impl, "median_us": us} for impl, us in (("dense", 4.0), ("fusion", 2.0))]
    line = "| fusion | relu | fc | step | 4.0 | 2.0 | +100.0% | +50.0% | 1.0 us shorter than predicted |"
    assert list(TOOL["changes"]([alone, *both]))[4:] == [line]
