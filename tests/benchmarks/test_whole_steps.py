"""The benchmark of whole steps: its rows, and its summary of rows that are known."""

from typing import Any

import pytest
import torch

from benchmarks import whole_steps
from benchmarks.results import Row

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_fit_the_schema(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr(whole_steps, "ROUNDS", 2)
    monkeypatch.setattr(whole_steps, "WARM_UP", 1)
    rows = list(whole_steps.measured(whole_steps.SMOKE, precision, "eager", CPU))
    for row in rows:
        Row.model_validate(row)
    assert [row["impl"] for row in rows] == ["dense", whole_steps.CIRCULANT]
    assert rows[0]["speedup"] == 1.0


def row(mode: str, impl: str, median: float, speedup: float) -> dict[str, Any]:
    return {"workload": "net", "precision": "bf16", "mode": mode, "impl": impl, "median_us": median, "speedup": speedup}


def test_the_summary_compares_modes_and_the_best_of_them() -> None:
    rows = [row("eager", "dense", 10.0, 1.0), row("eager", "circulant", 8.0, 1.25)]
    rows += [row("graph", "dense", 6.0, 1.0), row("graph", "circulant", 4.0, 1.5)]
    found = whole_steps.summary(rows)
    assert found["speedup, eager"] == {"net bf16": 1.25} and found["speedup, graph"] == {"net bf16": 1.5}
    assert found["speedup, best mode over best dense mode"] == {"net bf16": 1.5}


def test_the_networks_take_their_examples() -> None:
    for network in whole_steps.ALL[:1]:
        assert network.build()(torch.randn(2, 1024)).shape == (2, 1024)
