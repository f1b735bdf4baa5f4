"""The characterization: its rows, the hit rates of kernels with L1 on and off, and what a limit leaves out."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import characterization as bench
from benchmarks.results import Row
from lamina import measure
from lamina.errors import LaminaError
from lamina.measure.counters import Profiled, Session

pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim:DeprecationWarning"  # of Triton's interpreter
)
BUDGET = bench.Budget(100.0, measure.Stopwatch())
HIT, TIME = "l1tex__t_sector_hit_rate.pct", "gpu__time_duration.sum"


def small(device: str, batch: int, layers: str = "") -> Iterator[tuple[str, nn.Conv2d, torch.Tensor]]:
    yield "conv1", nn.Conv2d(2, 3, 3, bias=False), torch.randn(batch or 2, 2, 5, 5)


def seen(state: str, value: float, kernel: str = "forward_kernel") -> Profiled:
    name = f"l1/conv1/{'forward' if kernel == 'forward_kernel' else 'backward_weight'}/{state}"
    return Profiled(name, kernel, (1, 1, 1), (128, 1, 1), {HIT: (value, "%"), TIME: (2e3, "ns"), "no": (None, "")}, 3)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    commands: list[Sequence[str]] = []

    def profile(child: Sequence[str], metrics: Sequence[str], **_: Any) -> Session:
        commands.append(child)
        kernels = (
            *(seen("on", 40.0), seen("off", 1.0)),
            *(seen("on", 30.0, "weight_gradient_kernel"), seen("off", 2.0, "weight_gradient_kernel")),
            Profiled("l1/conv1/forward/on", "void reduce_kernel<float>", (1, 1, 1), (1, 1, 1), {HIT: (99.0, "%")}, 3),
            Profiled("elsewhere", "forward_kernel", (1, 1, 1), (1, 1, 1), {HIT: (99.0, "%")}, 3),
            Profiled(None, "forward_kernel", (1, 1, 1), (1, 1, 1), {HIT: (99.0, "%")}, 3),
        )
        return Session(kernels, tuple(child), "none")

    monkeypatch.setattr(bench.counters, "profile", profile)
    monkeypatch.setattr(bench, "convolutions", small)
    return commands


def test_each_phase_has_two_rows_with_their_hit_rates(session: list[Sequence[str]]) -> None:
    rows = list(bench.bypassed("cpu", 2, BUDGET))
    for row in rows:
        Row.model_validate(row)
    assert [(row["phase"], row["l1"], row["counters"]) for row in rows] == [
        ("forward", "on", {HIT: 40.0, TIME: 2e3}),
        ("forward", "off", {HIT: 1.0, TIME: 2e3}),
        ("backward_weight", "on", {HIT: 30.0, TIME: 2e3}),
        ("backward_weight", "off", {HIT: 2.0, TIME: 2e3}),
    ]
    on, off = rows[:2]
    assert on["measured_gain"] == off["measured_gain"] == 1 - off["median_us"] / on["median_us"]
    assert all(row["rel_error"] < 1e-6 and row["impl"] == f"l1_bypass[l1={row['l1']}]" for row in rows)
    assert session[0][-5:] == ["--iterate", "--device", "cpu", "--batch", "2"]


def test_hit_rates_alone_are_rows_too(session: list[Sequence[str]]) -> None:
    rows = list(bench.only_hit_rates("cpu", 2, BUDGET, "conv1"))
    assert session[0][-2:] == ["--layers", "conv1"]
    for row in rows:
        Row.model_validate(row)
    assert [(row["phase"], row["l1"], row["counters"][HIT], row["median_us"]) for row in rows] == [
        ("forward", "on", 40.0, 2.0),
        ("forward", "off", 1.0, 2.0),
        ("backward_weight", "on", 30.0, 2.0),
        ("backward_weight", "off", 2.0, 2.0),
    ]


def test_a_results_file_is_called_after_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.claim(["alexnet", "primitives", "bypass"]) == "characterization"
    assert bench.claim(["primitives", "hit_rates"]) == "characterization_primitives_hit_rates"
    monkeypatch.setattr(
        "sys.argv", ["x", "--stages", "alexnet", "--since", "1.5", "--output", "/tmp/out", "--limit", "9"]
    )
    assert bench.command() == "characterization --stages alexnet --limit 9"


def test_without_counters_there_are_times(session: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Session:
        raise LaminaError("no permission")

    monkeypatch.setattr(bench.counters, "profile", refused)
    assert {row["counters"] for row in bench.bypassed("cpu", 1, BUDGET)} == {None}


def test_the_convolutions_are_the_papers() -> None:
    found = list(bench.convolutions("cpu", 1))
    assert [name for name, *_ in found] == [f"conv{i}" for i in range(1, 6)]
    assert [name for name, *_ in bench.convolutions("cpu", 1, "conv2,conv3")] == ["conv2", "conv3"]
    assert [tuple(x.shape) for *_, x in found][:2] == [(1, 3, 227, 227), (1, 96, 27, 27)]


def test_a_stage_that_does_not_fit_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["characterization", "--limit", "20", "--device", "cpu", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)

    def one(stage: str, *_: Any) -> Iterator[dict[str, Any]]:
        assert stage == "bypass"
        raise LaminaError("it failed\nbadly")
        yield {}

    monkeypatch.setattr(bench, "measured", one)
    bench.main()
    said = capsys.readouterr().out
    summary = json.loads(said[said.index("{") :])
    assert list(summary["missing"]) == ["alexnet", "primitives", "bypass"]
    assert summary["missing"]["alexnet"].endswith("s were left") and summary["missing"]["bypass"] == "it failed badly"
