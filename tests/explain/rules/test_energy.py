"""Energy: layers that take more of it than of the time, and phases at the power limit."""

from collections.abc import Sequence

from tests.explain.recorded import H200, key, row

from lamina.explain import findings
from lamina.record import Finding, LayerRun


def one(layer: str, us: float, watts: float | None, phase: str = "forward") -> LayerRun:
    return row(key(layer, phase, "fp32"), us, energy_j=None if watts is None else watts * us / 1e6)


def said(rows: Sequence[LayerRun], rule: str, limit_w: float | None = None) -> list[Finding]:
    return [it for it in findings(rows, H200, power_limit_w=limit_w) if it.rule == rule]


def test_a_layer_with_more_of_the_energy_than_of_the_time_is_named() -> None:
    (found,) = said([one("features.0", 100.0, 600.0), one("features.1", 100.0, 200.0)], "energy")
    assert "take 0.08 J, on average at 400 W" in found.claim
    assert "features.0 (75% of it in 50% of the time)" in found.claim and "features.1" not in found.claim
    assert found.evidence["share of energy, features.0"] == 0.75


def test_the_phases_of_a_layer_are_added() -> None:
    rows = [
        one("features.0", 50.0, 800.0),
        one("features.0", 50.0, 0.0, "backward_data"),
        one("features.1", 100.0, 400.0),
    ]
    (found,) = said(rows, "energy")
    assert "more of the energy" not in found.claim


def test_layers_of_equal_power_are_not_named() -> None:
    (found,) = said([one("features.0", 300.0, 500.0), one("features.1", 100.0, 500.0)], "energy")
    assert "more of the energy" not in found.claim and "500 W" in found.claim


def test_without_energy_nothing_is_said() -> None:
    rows = [one("features.0", 100.0, None), one("features.1", 100.0, None)]
    assert said(rows, "energy") == said(rows, "power limit", 700.0) == []


def test_phases_at_the_power_limit_are_named() -> None:
    rows = [one("features.0", 100.0, 690.0), one("features.1", 300.0, 500.0)]
    (found,) = said(rows, "power limit", 700.0)
    assert "features.0" in found.claim and "690 W" in found.claim and "700 W, 25% of the step" in found.claim
    assert "features.1" not in found.claim
    assert said(rows, "power limit", 1000.0) == [] and said(rows, "power limit") == []


def test_insignificant_phases_at_the_limit_are_ignored() -> None:
    assert said([one("features.0", 1.0, 700.0), one("features.1", 9_999.0, 100.0)], "power limit", 700.0) == []
