"""On-chip fission alone and with elimination: rows of a layer, and what figure 9 makes of them."""

from typing import Any

import pytest
import torch

from lamina.errors import CheckError
from lamina.pipeline.reproduce.live import elimination, fission
from lamina.pipeline.reproduce.live.timing import Layer
from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.measured.judging import Scope, judge
from lamina.spec.published import entry

SMALL = (Layer("conv2", 4, 6, 3, 5), Layer("fc6", 8, 4))


def test_every_format_and_tile_has_rows_with_and_without_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fission, "LAYERS", SMALL)
    rows = fission.layers(Scope("cpu"), impl="reference")
    assert len(rows) == 2 * 2 * 4 * 3 and {row["keep"] for row in rows} == {1.0, 0.5}
    judged = {row.value.quantity: row for row in judge(entry("deftnn-figure-9"), measurement("deft-networks"), rows)}
    assert judged["fission speedup"].measured is not None
    both = judged["speedup of both"]
    assert both.measured is not None and both.ours.endswith("50% of the inputs kept")


def test_a_result_that_is_not_the_definition_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fission, "LAYERS", SMALL)
    linear = fission.functional.linear

    def wrong(*args: Any, impl: Any, **options: Any) -> torch.Tensor:
        return linear(*args, impl="reference", **options) * (1.1 if impl == "other" else 1)

    monkeypatch.setattr(fission.functional, "linear", wrong)
    monkeypatch.setattr(fission, "LAYERS", SMALL[1:])
    with pytest.raises(CheckError, match="not timed"):
        fission.layers(Scope("cpu"), impl="other")


def test_rows_without_elimination_leave_both_undecided() -> None:
    times = (("float", 4.0), ("half", 1.0), ("deft16", 2.0))
    rows = [{"layer": "conv2", "format": format, "tile": 8, "median_us": us} for format, us in times]
    known = measurement("on-chip-fission")
    (value,) = [one for one in entry("deftnn-figure-9").values if one.quantity == "fission speedup"]
    assert known.values["fission speedup"](rows, value)[0] == 2.0
    judged = judge(entry("deftnn-figure-9"), measurement("deft-networks"), rows)
    assert "measure on a GPU" in next(row.ours for row in judged if row.value.quantity == "speedup of both")


def test_on_a_cpu_networks_alone_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "networks", lambda scope: [{"workload": "x"}])
    assert fission.networks(Scope("cpu")) == [{"workload": "x"}]
    monkeypatch.setattr(fission, "layers", lambda scope: [{"workload": "y"}])
    assert [row["workload"] for row in fission.networks(Scope("cuda"))] == ["x", "y"]
