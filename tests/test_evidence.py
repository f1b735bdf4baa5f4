"""The pages of evidence say what the results files say."""

import re
import runpy
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "make_evidence.py"))
ROW = {"layer": "fc", "phase": "step", "precision": "fp32", "layout": "nchw", "impl": "dense", "batch": 8}
ROW |= {"timing": "cupti", "l2": "warm"}


def test_pages_are_in_step_with_the_results() -> None:
    pages = TOOL["pages"]()
    written = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "evidence").glob("*.md")}
    assert written == pages, "run: python tools/make_evidence.py"


def test_a_page_shows_each_layer_and_phase_once_by_one_clock() -> None:
    rows = [
        ROW | {"layer": "conv1", "phase": "forward", "median_us": 12.34},
        ROW | {"layer": "conv1", "phase": "forward", "median_us": 99.0, "l2": "cold"},
        ROW | {"layer": "conv1", "phase": "forward", "median_us": 5.0, "precision": "bf16"},
        ROW | {"layer": "conv1", "phase": "backward_weight", "median_us": 7.0},
    ]
    table = list(TOOL["layers"](rows))
    assert table[2:-1] == [
        "|  | fp32 dense | bf16 dense |",
        "|---|--:|--:|",
        "| conv1 forward | 12.3 | 5.0 |",
        "| conv1 backward_weight | 7.0 | - |",
    ]


def test_a_speedup_is_over_the_best_dense_layout_of_the_same_precision_batch_and_part() -> None:
    rows = [
        ROW | {"median_us": 8.0},
        ROW | {"median_us": 6.0, "layout": "nhwc"},
        ROW | {"median_us": 1.0, "precision": "bf16"},
        ROW | {"median_us": 2.0, "batch": 1},
        ROW | {"median_us": 4.0, "what": "unfold"},
        ROW | {"median_us": 3.0, "impl": "sparse"},
        ROW | {"median_us": 3.0, "impl": "sparse", "what": "unfold"},
        ROW | {"median_us": 3.0, "impl": "sparse", "batch": 1},
    ]
    lines = "\n".join(TOOL["layers"](rows))
    assert [cell in lines for cell in ("3.0 (2.00x)", "3.0 (1.33x)", "3.0 (0.67x)")] == [True, True, True]
    assert lines.count("x)") == 3


def test_many_implementations_are_rows_in_a_table_for_each_precision() -> None:
    impls = ["dense", *(f"sparse[keep=0.5,group={size}]" for size in (1, 2, 4, 8))]
    rows = [
        ROW | {"layer": layer, "impl": impl, "precision": precision, "median_us": 1.0}
        for layer in ("conv1", "conv2")
        for precision in ("fp32", "bf16")
        for impl in impls
    ]
    lines = list(TOOL["layers"](rows))
    assert [line for line in lines if line.startswith("###")] == ["### fp32", "### bf16"]
    assert lines.count("|  | conv1 | conv2 |") == 2
    assert lines.count("| sparse[group=8] | 1.0 (1.00x) | 1.0 (1.00x) |") == 2
    assert lines.count("All with keep=0.5.") == 2


def test_a_setting_that_tells_names_apart_stays() -> None:
    names = ["deft, batch 1", "deft[ways=fastest], batch 1", "deft[ways=fastest], batch 16"]
    assert TOOL["shared"](names) == set()
    assert TOOL["shared"](names[1:]) == {"ways=fastest"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["forward", "step"]),
            st.sampled_from(["fp32", "tf32"]),
            st.sampled_from(["nchw", "nhwc"]),
            st.sampled_from(["dense", "sparse[keep=0.5]", "sparse[keep=0.25]", "circulant"]),
            st.sampled_from([1, 128]),
            st.sampled_from(["conv1", "a much longer name of a layer"]),
        ),
        unique=True,
        min_size=1,
    )
)
def test_no_time_is_lost_or_shown_twice(keys: list[tuple[str, ...]]) -> None:
    axes = ("phase", "precision", "layout", "impl", "batch", "layer")
    rows = [ROW | dict(zip(axes, key, strict=True)) | {"median_us": 100.5 + at} for at, key in enumerate(keys)]
    shown = [float(time) for line in TOOL["layers"](rows) for time in re.findall(r"(?<=\| )\d+\.5", line)]
    assert sorted(shown) == [row["median_us"] for row in rows]


def test_nested_summaries_become_tables_of_their_own() -> None:
    summary = {
        "predictions": 12,
        "gain: conv1, fp32": {"pack": 1.25, "slice": 2.0, "curve": [1, 2]},
        "gain: conv2, fp32": {"pack": 0.5},
        "best": {"fc fp32": 1.5, "fc bf16": 0.5},
    }
    assert list(TOOL["facts"](summary)) == [
        *("|  | value |", "|---|--:|", "| predictions | 12 |", ""),
        *("### Gain", "", "|  | pack | slice |", "|---|--:|--:|"),
        *("| conv1, fp32 | 1.25 | 2 |", "| conv2, fp32 | 0.5 | - |", ""),
        *("### Best", "", "|  | fp32 | bf16 |", "|---|--:|--:|", "| fc | 1.5 | 0.5 |", ""),
    ]


def test_a_page_of_changes_pairs_what_was_with_what_is() -> None:
    common = {"workload": "net", "change": "fusion", "detail": "relu", "layer": "fc", "phase": "step"}
    gains = {"predicted_gain": 0.5, "measured_gain": 1.0, "miss": "1.0 us shorter than predicted"}
    alone = common | gains | {"impl": "dense", "median_us": 3.0, "change": "precision"}  # was not executed
    both = [common | gains | {"impl": impl, "median_us": us} for impl, us in (("dense", 4.0), ("fusion", 2.0))]
    line = "| fusion | relu | fc | step | 4.0 | 2.0 | +100.0% | +50.0% | 1.0 us shorter than predicted |"
    assert list(TOOL["changes"]([alone, *both]))[4:] == [line]


def test_times_of_runs_that_shared_the_device_are_not_shown() -> None:
    row = ROW | {"median_us": 1.0}
    assert list(TOOL["table"]([row | {"test_accuracy": [0.1]}])) == []
    assert list(TOOL["table"]([row])) != []


def test_a_matrix_has_a_row_for_each_network_and_every_reason() -> None:
    row = ROW | {"workload": "net", "source": "timm", "cells": {"bench": "ok", "train": "refused", "load": "refused"}}
    rows = [
        row | {"reasons": {"train": "a | b", "load": "a | b"}},
        row | {"workload": "other", "source": "hostile", "cells": {"bench": "timeout"}, "reasons": {"bench": "60 s"}},
    ]
    lines = list(TOOL["table"](rows))
    assert lines[2:5] == ["### timm", "", "|  | bench | train | load |"]
    assert "| net | ✓ | refused | refused |" in lines and "| other | **timeout** | - | - |" in lines
    assert lines[-3:-1] == ["| net | train, load | a / b |", "| other | bench | 60 s |"]
