"""Trials of a method on a layer."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.select import Cache, Selector, observe
from lamina.pipeline.study.attempts import Attempt
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.observed import Observed
from lamina.pipeline.study.trials import OVER, folded_trial, trials_of
from lamina.record import Timing
from lamina.record.study import Settings
from lamina.spec import Method

HALF = "eliminated[recovery=least_squares,keep=0.5]"


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


def observed(model: Any, times_us: Mapping[str, float], groups: Mapping[str, int] | None = None) -> Observed:
    """By what the name of a step contains, its time; 1 us for others."""

    def timer(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        found: dict[str, Timing | Exception] = {}
        for name in steps:
            time = next((us for text, us in times_us.items() if text in name), 1.0)
            found[name] = Timing("wall", "warm", time, time, time, 9)
        return found

    x = torch.randn(4, 8)
    calls = observe(model, ["0", "2"], x)
    chosen = Selector(timer, Cache(None, {}), "eager", training=False)
    return Observed(model, Settings("fp32", "nchw", "eager"), (x,), calls, chosen, groups)


def attempt(model: Any, text: str, refusal: str | None = None) -> Attempt:
    return Attempt(Method.parse(text), ("2",), model[2], refusal, None)


def test_the_fastest_implementation_is_selected_and_named_as_requested() -> None:
    model = network()
    dense, *others = trials_of(attempt(model, HALF), observed(model, {"dense": 10.0, "eliminated": 6.0}), Budget(None))
    assert (dense.impl, dense.outcome, dense.dense_us) == ("dense", "slower", 10.0)
    (best,) = [one for one in others if one.outcome == "selected"]
    assert best.saved_us == 4.0 and best.kind.startswith("Linear(")
    assert all("recovery=least_squares" in one.impl and "scale" not in one.impl + one.reason for one in others)


def test_what_is_not_faster_than_dense_is_slower() -> None:
    model = network()
    found = trials_of(attempt(model, HALF), observed(model, {"dense": 3.0, "eliminated": 3.0}), Budget(None))
    assert {one.outcome for one in found if one.timing} == {"slower"}


@pytest.mark.parametrize(
    ("text", "refusal", "seconds", "outcome", "reason"),
    [
        (HALF, "it ended its process", None, "refused", "it ended its process"),
        (HALF, None, 1e-9, "failed", OVER),
        ("dense:fft", None, None, "failed", ""),
    ],
)
def test_an_attempt_that_does_not_run_has_one_trial_with_the_reason(
    text: str, refusal: str | None, seconds: float | None, outcome: str, reason: str
) -> None:
    model = network()
    (found,) = trials_of(attempt(model, text, refusal), observed(model, {}), Budget(seconds))
    assert (found.impl, found.timing, found.saved_us) == (text, None, 0.0)
    assert found.outcome in (outcome, "refused") and reason in found.reason


def test_a_layer_that_nothing_reached_is_refused() -> None:
    model = network()
    seen = observed(model, {})
    (found,) = trials_of(
        attempt(model, HALF), Observed(seen.model, seen.settings, seen.example, {}, seen.chosen, None), Budget(None)
    )
    assert found.outcome == "refused" and "did not reach" in found.reason


def test_a_layer_and_its_producer_are_timed_together() -> None:
    model = network()
    trial, parts = folded_trial(attempt(model, HALF), observed(model, {"dense 0": 4.0, "dense 2": 2.0}, {}))
    assert trial.impl == "eliminated[recovery=least_squares,keep=0.5,fold=true]"
    assert trial.outcome == "selected" and trial.saved_us == 4.0 and trial.reason.startswith("with its producer, ")
    assert parts == {"0": 0.25, "2": 0.5}


def test_the_first_layer_has_no_producer() -> None:
    model = network()
    first = Attempt(Method.parse(HALF), ("0",), model[0], None, None)
    trial, parts = folded_trial(first, observed(model, {}, {}))
    assert (trial.outcome, trial.timing, parts) == ("refused", None, {})
