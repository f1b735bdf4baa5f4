import pytest
from tests.explain.recorded import counted, document, kernel, key, recorded

from lamina.explain.launches import Launches
from lamina.explain.metrics import stall
from lamina.explain.stalls import ISSUED, REASONS, shares


def test_all_nineteen_reasons_are_those_of_nsight_compute() -> None:
    assert {stall(reason) for reason in (*REASONS, ISSUED)} == {it for it in document()["units"] if "stalled" in it}
    assert len(REASONS) == 18


@pytest.mark.parametrize(
    ("layer", "two"),
    [
        ("features.1", ["long_scoreboard", "drain"]),
        ("classifier.1", ["short_scoreboard", "not_selected"]),
        ("classifier.4", ["long_scoreboard", "short_scoreboard"]),
    ],
)
def test_shares_exclude_the_issued_time(layer: str, two: list[str]) -> None:
    _, kernels, counters = recorded(layer)
    launches = Launches(kernels, counters)[key(layer)]
    found = shares(launches)
    assert list(found)[:2] == two
    assert sum(found.values()) == pytest.approx(1.0, abs=0.02)
    if len(launches) == 1:
        (of,) = (one["counters"] for one in document()["kernels"] if (one["layer"], one["phase"]) == (layer, "forward"))
        expected = of[stall(two[0])] / (100 - of[stall("selected")])
        assert found[two[0]] == pytest.approx(expected)


def test_without_the_time_issued_there_are_no_shares() -> None:
    one = kernel(key("x"), 10.0)
    assert shares(Launches([one], counted(one, {stall("wait"): 50.0}))[key("x")]) == {}
    assert shares(Launches([one], counted(one, {stall("selected"): 50.0}))[key("x")]) == {}
    assert shares(Launches([one])[key("x")]) == {}


def test_an_older_gpu_has_one_reason_less() -> None:
    one = kernel(key("x"), 10.0)
    values = {stall("selected"): 20.0, stall("wait"): 60.0, stall("barrier"): 20.0, stall("gmma"): None}
    assert shares(Launches([one], counted(one, values))[key("x")]) == {"wait": 0.75, "barrier": 0.25}
