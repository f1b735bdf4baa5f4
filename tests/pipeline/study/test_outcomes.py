"""What became of settings and candidates in the end."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.pipeline.study import outcomes
from lamina.pipeline.study.outcomes import settled, settled_trial
from lamina.pipeline.study.whole import Compared
from lamina.record import Timing
from lamina.record.study import Measured, Settings, Trial

CIRCULANT = "circulant[block_size=64]"


def measured(mode: str, time_us: float, accuracy: float | None = 90.0) -> Measured:
    timing = Timing("wall", "warm", time_us, time_us, time_us, 9)
    return Measured("uniform", Settings("fp32", "nchw", mode), timing, accuracy)


@pytest.mark.parametrize(
    ("impl", "outcome", "choice", "expected", "reason"),
    [
        (CIRCULANT, "selected", {"fc": CIRCULANT}, "selected", "2 us"),
        (CIRCULANT, "refused", {}, "refused", "2 us"),
        (CIRCULANT, "selected", {"fc": "fused"}, "slower", "fused was selected; 2 us"),
        (CIRCULANT, "selected", {}, "inaccurate", "faster alone, but not in the plan; 2 us"),
        ("fused", "selected", {"conv": "fused"}, "slower", "faster alone, but not in the plan; 2 us"),
    ],
)
def test_a_candidate_has_what_became_of_it(
    impl: str, outcome: Any, choice: dict[str, str], expected: str, reason: str
) -> None:
    trial = Trial("fc", "Linear", impl, Settings("fp32", "nchw", "eager"), outcome=outcome, reason="2 us")
    found = settled_trial(trial, choice)
    assert (found.outcome, found.reason) == (expected, reason)


class Plans:
    def accuracy(self, choice: Any, test: bool) -> float:
        assert choice == {"fc": CIRCULANT} and test
        return 80.0


@pytest.mark.parametrize("faster", [False, True])
def test_settings_have_their_last_times_and_the_plan_comes_last(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    monkeypatch.setattr(outcomes, "accuracy_at", lambda context, settings, test: 85.0 if test else 0.0)
    wholes = [measured("eager", 9.0), measured("graph", 5.0), measured("compiled", 7.0, None)]
    again = measured("graph", 4.0)
    plan = replace(measured("graph", 2.0), name="plan", outcome="selected")
    compared = Compared(plan, (again,), faster, "2 us < 4 us", {"fc": CIRCULANT})
    context: Any = SimpleNamespace(watch=lambda _: None)
    plans: Any = Plans()
    *rows, last = settled(context, wholes, compared, plans)
    assert [one.time_us for one in rows] == [9.0, 4.0, 7.0]
    assert [one.accuracy for one in rows] == [85.0, 85.0, None]
    assert last.name == "plan" and last.outcome == "selected"
    assert (last.time_us, last.accuracy) == ((2.0, 80.0) if faster else (4.0, 85.0))
    assert rows[1].outcome == ("slower" if faster else "selected")
