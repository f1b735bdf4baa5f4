"""The page, the summary and the tables of a study: what was measured, in words that hold."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lamina.record import Run, Study, Timing, Trial
from lamina.record.study import FrontPoint, Measured, Settings
from lamina.report import units
from lamina.report.html.study import front, tiles, write_study
from lamina.report.study_markdown import study_markdown
from lamina.report.study_table import layers_table, verdict, wholes_table

EAGER, BEST = Settings("fp32", "nchw", "eager"), Settings("bf16", "nhwc", "compiled")
RIVAL = Settings("fp32", "nchw", "eager", "torchao:int8-weight-only")
IMPL = "circulant[block_size=64]"
HOSTILE = '<script>alert("1")</script>|`x`'


def timing(us: float) -> Timing:
    return Timing("wall", "warm", us, 0.99 * us, 1.01 * us, 9)


def measured(name: str, settings: Settings, us: float | None, accuracy: float | None = 90.0, **more: Any) -> Measured:
    return Measured(name, settings, None if us is None else timing(us), accuracy, 1000, 2**20, None, **more)


def trial(layer: str, impl: str, us: float | None, **more: Any) -> Trial:
    return Trial(layer, "Linear(8, 8)", impl, BEST, None if us is None else timing(us), **more)


STUDY = Study(
    "mlp", "infer", "accuracy", 1.0, "fashion-mnist", 64,
    (
        measured("before", EAGER, 100.0),
        measured("uniform", BEST, 60.0),
        measured("uniform", RIVAL, None, None, outcome="failed", reason="torchao refused it"),
        measured("plan", BEST, 30.0, 89.5, outcome="selected", reason="30 us < 60 us"),
    ),
    (
        trial("fc1", "dense", 40.0, reason="the user's own"),
        trial("fc1", IMPL, 10.0, dense_us=40.0, outcome="selected", reason="10 us < 40 us"),
        trial("fc1", "fused", 45.0, dense_us=40.0, reason="40 us < 45 us"),
        trial("fc2", "dense", 20.0, reason="the user's own"),
        trial("fc2", IMPL, None, outcome="refused", reason="block size 64 exceeds its 8 inputs"),
    ),
    (FrontPoint(30.0, 89.4, {"fc1": IMPL}), FrontPoint(60.0, 90.0, {}, measured=True)),
    32.0, 'version = 1\n', {"fc2": "circulant: block size 64 exceeds its 8 inputs"}, ("fc1 takes 60% of the step",),
    {"the layers": 3.0}, 600.0, BEST,
)  # fmt: skip
NOTHING = replace(
    STUDY, wholes=(measured("before", EAGER, 100.0), measured("plan", EAGER, 100.0, outcome="selected")), trials=(),
    front=(FrontPoint(100.0, 90.0, {}, measured=True),), predicted_us=None, baseline=EAGER,
)  # fmt: skip


@pytest.fixture
def run() -> Run:
    return Run(
        "abc", "study", "mlp", "lamina study mlp", "2026-01-02T03:04:05+00:00", "f", {}, {"device": "a chip"}, "done"
    )


def page(study: Study, run: Run, folder: Path) -> str:
    return write_study(folder / "deep" / "study.html", run, study).read_text(encoding="utf-8")


def test_the_page_begins_with_the_result(run: Run, tmp_path: Path) -> None:
    html = page(STUDY, run, tmp_path)
    assert "The plan, 1 layer changed: 2.00x over the best uniform setting, 3.33x over the network as it was." in html
    assert html.index("3.33x") < html.index("Layer by layer")
    for text in ("89.50 %", "-0.50 points from 90.00 %", "budget: 1 point", "torchao refused it", "10 µs &lt; 40 µs"):
        assert text in html, text


def test_every_candidate_has_its_evidence(run: Run, tmp_path: Path) -> None:
    html = page(STUDY, run, tmp_path)
    for one in STUDY.trials:
        assert units.sentence(one.reason).replace("'", "&#39;").replace("<", "&lt;") in html or one.impl == "dense"
    assert html.count('<details class="layer') == 2 and html.count('<details class="layer changed') == 1


def test_nothing_on_the_page_reaches_out_or_runs(run: Run, tmp_path: Path) -> None:
    html = page(STUDY, run, tmp_path)
    assert "<script" not in html and "http" not in html.replace("http-equiv", "")


def test_names_stay_text(run: Run, tmp_path: Path) -> None:
    hostile = replace(STUDY, network=HOSTILE, findings=(HOSTILE,), plan=HOSTILE, unsupported={HOSTILE: HOSTILE},
                      trials=(trial(HOSTILE, "dense", 3.0, reason=HOSTILE),))  # fmt: skip
    assert "<script" not in page(hostile, run, tmp_path)
    assert "<script" not in study_markdown(hostile) and "`x`" not in study_markdown(hostile)


@pytest.mark.parametrize("base", [STUDY, replace(STUDY, trials=())])
def test_a_loss_on_the_test_samples_beyond_the_budget_is_told(base: Study) -> None:
    *others, plan = base.wholes
    assert "loses" not in verdict(replace(base, wholes=(*others, replace(plan, accuracy=89.0))))
    beyond = replace(base, wholes=(*others, replace(plan, accuracy=87.5)))
    assert "; it loses 2.50 points on the test samples, more than the 1.00 that" in verdict(beyond)
    assert "2.50 points on the test samples" in study_markdown(beyond)
    assert "2.50 % of the outputs on the test" in verdict(replace(beyond, metric="output error"))
    unknown = replace(base, wholes=(*others, replace(plan, accuracy=None)))
    assert "loses" not in verdict(unknown)


def test_nothing_faster_is_said_so(run: Run, tmp_path: Path) -> None:
    assert verdict(NOTHING) == "nothing that was tried is faster than the network as it is"
    html = page(NOTHING, run, tmp_path)
    assert "Nothing that was tried is faster than the network as it is." in html and "<svg" not in html
    assert "no layer changes: the network at bf16, channels-last, compiled is 1.67x as fast" in verdict(
        replace(NOTHING, wholes=(*STUDY.wholes[:2], measured("plan", BEST, 60.0)), baseline=BEST)
    )


def test_a_study_without_accuracy_or_times(run: Run, tmp_path: Path) -> None:
    unknown = replace(STUDY, wholes=tuple(replace(one, accuracy=None, peak_bytes=None) for one in STUDY.wholes))
    assert [tile["name"] for tile in tiles(unknown)] == [
        "over the network as it was", "over the best uniform setting", "parameters",
    ]  # fmt: skip
    untimed = replace(STUDY, wholes=tuple(replace(one, timing=None) for one in STUDY.wholes))
    assert "could not be timed" in page(untimed, run, tmp_path)


def test_an_accuracy_that_rounds_to_the_same_is_as_before(run: Run, tmp_path: Path) -> None:
    before, *others = STUDY.wholes
    html = page(replace(STUDY, wholes=(replace(before, accuracy=89.5 + 1e-9), *others)), run, tmp_path)
    assert "as before" in html and "-0.00" not in html


def test_the_error_of_outputs_is_shown_as_an_error(run: Run, tmp_path: Path) -> None:
    study = replace(STUDY, metric="output error")
    assert "10.50 %" in page(study, run, tmp_path) and "| 10.50 % |" in study_markdown(study)


def test_the_plan_is_marked_on_the_front() -> None:
    drawn = front(STUDY)
    assert drawn is not None
    (plan,) = [one for one in drawn["points"] if one["plan"]]
    dense = next(one for one in drawn["points"] if not one["plan"])
    assert plan["x"] < dense["x"] and plan["y"] > dense["y"] and len(drawn["points"]) == 2
    assert dense["y"] < drawn["limit"]  # the budget lies below the dense network
    for axis in ("xticks", "yticks"):
        assert 2 <= len(drawn[axis]) <= 8


def test_five_hundred_layers_stay_below_three_megabytes(run: Run, tmp_path: Path) -> None:
    rows = [
        trial(f"blocks.{index}.attention.projection", impl, 10.0, dense_us=11.0, reason="10 us < 11 us, 12 us, 13 us")
        for index in range(500)
        for impl in ("dense", *(f"circulant[block_size={k},impl=kernel]" for k in range(12)))
    ]
    assert len(page(replace(STUDY, trials=tuple(rows)), run, tmp_path)) < 3e6


def test_the_summary_is_short_and_holds_the_table() -> None:
    text = study_markdown(STUDY)
    assert "| **plan** | bf16, channels-last, compiled | 30.0 µs | 3.33x | 89.50 % | 1.00 MiB |" in text
    assert f"| fc1 | `{IMPL}` | 40.0 µs | 10.0 µs |" in text and "did not run (torchao refused it)" in text
    many = tuple(
        trial(f"fc{index}", IMPL, 10.0, dense_us=40.0, outcome="selected", reason="faster") for index in range(99)
    )
    assert len(study_markdown(replace(STUDY, trials=many, findings=("x",) * 50)).splitlines()) < 60


def test_the_tables() -> None:
    console = Console(file=StringIO(), width=200)
    console.print(wholes_table(STUDY, 200), layers_table(STUDY, 200))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("3.33x", "89.50 %", "4.00x", IMPL, "torchao refused it", "block size 64 exceeds"):
        assert part in text, part
