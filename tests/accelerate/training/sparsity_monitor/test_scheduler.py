"""The state machine beside a transcription of the published algorithms, stepped by hand."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.training.sparsity_monitor import Pace, Parameters, Scheduler, State
from lamina.errors import UsageError

SMALL = Parameters(history=3, stability=0.05, initial_period=4, duration=1, hibernation_period=16)
sparsities = st.sampled_from([0.0, 0.1, 0.3, 0.48, 0.5, 0.52, 0.9, 1.0]) | st.floats(0, 1)


class Published:
    """Algorithms 1 and 2 line by line, on lists, for maps that are measured once each process."""

    def __init__(self, names: list[str], parameters: Parameters):
        self.p = parameters
        self.state = "active"
        self.history: dict[str, list[float]] = {name: [] for name in names}
        self.period = dict.fromkeys(names, parameters.initial_period)

    def update(self, name: str, sparsity: float) -> None:
        self.history[name] = [*self.history[name], sparsity][-self.p.history :]

    def measured(self, name: str, sparsity: float) -> None:
        if self.state == "active":
            if len(self.history[name]) < self.p.history:
                self.history[name].append(sparsity)
            else:
                if abs(sparsity - self.history[name][0]) < self.p.stability:
                    self.period[name] *= 2
                if self.period[name] > self.p.hibernation_period:
                    self.period[name] = self.p.hibernation_period
                self.update(name, sparsity)
        if self.state == "active":
            ready = 0
            for period in self.period.values():
                if period == self.p.hibernation_period:
                    ready += 1
            if ready == len(self.period):
                self.state = "hibernate"
        if self.state == "hibernate":
            if len(self.history[name]) < self.p.history:
                self.history[name].append(sparsity)
            elif abs(sparsity - self.history[name][0]) >= self.p.stability:
                self.period = dict.fromkeys(self.period, self.p.initial_period)
                self.state = "active"
                self.history[name] = []
            self.update(name, sparsity)


def drive(scheduler: Scheduler, name: str, iteration: int, sparsity: float) -> bool:
    """Observe one map at one iteration if it is due, its result in at once."""
    due = scheduler.is_due(name, iteration)
    if due:
        scheduler.observed(name, scheduler.observing(name, iteration), sparsity)
    return due


@given(st.lists(st.lists(sparsities, min_size=2, max_size=2), max_size=150), st.integers(1, 4))
def test_periods_histories_and_states_are_the_published_ones(values: list[list[float]], history: int) -> None:
    parameters = replace(SMALL, history=history)
    scheduler, published = Scheduler(parameters), Published(["a", "b"], parameters)
    for name in "ab":
        scheduler.is_due(name, 0)
    for iteration, pair in enumerate(values):
        for name, sparsity in zip("ab", pair, strict=True):
            if drive(scheduler, name, iteration, sparsity):
                published.measured(name, sparsity)
            assert str(scheduler.state) == published.state
            assert {entry.name: entry.period for entry in scheduler.maps} == published.period
            assert {entry.name: [*entry.history] for entry in scheduler.maps} == published.history


@given(st.lists(st.floats(0, 1), min_size=60, max_size=200), st.integers(1, 4))
def test_gaps_between_processes_are_the_periods(values: list[float], duration: int) -> None:
    parameters = replace(SMALL, duration=duration, sparse_enough=0.0)
    scheduler = Scheduler(parameters)
    begun: list[int] = []
    for iteration, sparsity in enumerate(values):
        asleep = iteration < scheduler.next_due_iteration()
        if scheduler.is_due("a", iteration):
            assert not asleep
            process = scheduler.observing("a", iteration)
            scheduler.observed("a", process, sparsity)
            if process not in begun:
                assert process == iteration
                begun.append(process)
            assert begun[-1] <= iteration < begun[-1] + duration
        assert parameters.initial_period <= scheduler.maps["a"].period <= parameters.hibernation_period
    assert all(4 <= later - earlier <= 16 for earlier, later in pairwise(begun))


def test_a_stable_map_doubles_its_period_then_sleeps_and_wakes() -> None:
    scheduler = Scheduler(SMALL)
    observed = [i for i in range(100) if drive(scheduler, "a", i, 0.5)]
    # Three fill the history, the fourth doubles 4 to 8, the fifth 8 to 16: everything is stable.
    assert observed == [0, 4, 8, 12, 20, 36, 52, 68, 84]
    assert scheduler.state is State.HIBERNATE
    assert drive(scheduler, "a", 100, 0.7)
    assert scheduler.state is State.ACTIVE
    assert [*scheduler.maps["a"].history] == [0.7]
    assert [i for i in range(101, 110) if drive(scheduler, "a", i, 0.7)] == [104, 108]
    assert "history 3 of 3" in scheduler.maps["a"].why


def test_nothing_is_observed_in_hibernation_and_all_wake_together() -> None:
    scheduler = Scheduler(SMALL, {"b": Pace(3, 2)})
    values = {"a": 0.5, "b": 0.9}
    iteration = 0
    while scheduler.state is State.ACTIVE:
        for name, sparsity in values.items():
            drive(scheduler, name, iteration, sparsity)
        iteration += 1
        assert iteration < 1000
    wake = {entry.next for entry in scheduler.maps}
    assert len(wake) == 1
    assert not any(scheduler.is_due(name, i) for i in range(iteration, min(wake)) for name in values)
    assert all(scheduler.is_due(name, min(wake)) for name in values)
    drive(scheduler, "a", min(wake), 0.1)
    assert scheduler.state is State.ACTIVE
    assert {entry.name: entry.period for entry in scheduler.maps} == {"a": 4, "b": 3}
    assert {entry.name: entry.next for entry in scheduler.maps} == {"a": min(wake) + 4, "b": min(wake) + 3}


def test_one_unstable_map_keeps_all_awake() -> None:
    scheduler = Scheduler(SMALL)
    for iteration in range(400):
        drive(scheduler, "stable", iteration, 0.5)
        drive(scheduler, "restless", iteration, (iteration // 4 % 2) * 0.5 + 0.3)
    assert scheduler.state is State.ACTIVE
    assert scheduler.maps["stable"].period == 16
    assert scheduler.maps["restless"].period == 4


def test_low_sparsity_ends_a_process_at_once() -> None:
    scheduler = Scheduler(replace(SMALL, duration=4))
    seen = [i for i in range(12) if drive(scheduler, "a", i, 0.29 if i in (0, 5) else 0.3)]
    assert seen == [0, 4, 5, 8, 9, 10, 11]
    assert scheduler.maps["a"].history[0] == 0.29
    assert scheduler.maps["a"].history[1] == pytest.approx((0.3 + 0.29) / 2)


@given(st.lists(st.floats(0, 1), min_size=100, max_size=100), st.integers(0, 3), st.integers(1, 3))
def test_lateness_changes_nothing_but_wasted_observations(values: list[float], late: int, duration: int) -> None:
    """Results that come some iterations later, in order and before the next process, give the same run."""
    parameters = replace(SMALL, duration=duration, initial_period=8, hibernation_period=32)
    prompt, delayed = Scheduler(parameters), Scheduler(parameters)
    pending: list[tuple[int, str, int, float]] = []
    for iteration, value in enumerate([*values, *[0.0] * late]):
        pending, ready = [p for p in pending if p[0] > iteration], [p for p in pending if p[0] <= iteration]
        for _, name, begun, sparsity in ready:
            delayed.observed(name, begun, sparsity)
        if iteration < len(values):
            for name, sparsity in (("a", value), ("b", 1 - value)):
                drive(prompt, name, iteration, sparsity)
                if delayed.is_due(name, iteration):
                    pending.append((iteration + late, name, delayed.observing(name, iteration), sparsity))
    for _, name, begun, sparsity in pending:
        delayed.observed(name, begun, sparsity)
    for one, other in zip(prompt.maps, delayed.maps, strict=True):
        assert (one.period, [*one.history], one.next) == (other.period, [*other.history], other.next)
    assert prompt.state is delayed.state


def test_results_later_than_a_whole_period_still_count() -> None:
    scheduler = Scheduler(replace(SMALL, initial_period=1, hibernation_period=1000))
    begun = [scheduler.observing("a", i) for i in range(3) if scheduler.is_due("a", i)]
    for process in begun:
        scheduler.observed("a", process, 0.5)
    assert begun == [0, 1, 2]
    assert len(scheduler.maps["a"].history) == 3


def test_each_map_has_the_schedule_of_its_name_or_of_the_first_pattern_that_fits() -> None:
    paces = {"f.*": Pace.parse("every:3"), "*.1": Pace.parse("every:5"), "f.2": Pace.parse("every:7")}
    scheduler = Scheduler(SMALL, paces)
    seen: dict[str, list[int]] = {name: [] for name in ("f.1", "f.2", "c.1", "c.2")}
    for iteration in range(16):
        for name, at in seen.items():
            if drive(scheduler, name, iteration, iteration % 2):
                at.append(iteration)
    assert seen["f.1"] == [0, 3, 6, 9, 12, 15]
    assert seen["f.2"] == [0, 7, 14]
    assert seen["c.1"] == [0, 5, 10, 15]
    assert seen["c.2"] == [0, 4, 8, 12]


@given(st.lists(sparsities, min_size=40, max_size=80), st.integers(1, 9), st.integers(1, 3))
def test_a_constant_schedule_neither_adapts_nor_takes_part_in_hibernation(
    values: list[float], period: int, duration: int
) -> None:
    parameters = replace(SMALL, sparse_enough=0.0)
    mixed = Scheduler(parameters, {"b": Pace(period, min(duration, period), "every")})
    alone = Scheduler(parameters)
    seen = []
    for iteration, value in enumerate(values):
        if drive(mixed, "b", iteration, value):
            seen.append(iteration)
        assert drive(mixed, "a", iteration, 0.5) == drive(alone, "a", iteration, 0.5)
        assert mixed.state == alone.state
    assert seen == [i for i in range(len(values)) if i % period < min(duration, period)]


def test_an_adaptive_period_is_the_time_in_which_the_density_changes_by_the_stability() -> None:
    scheduler = Scheduler(replace(SMALL, stability=0.02), {"a": Pace(2, 1, "adaptive", 100)})
    value, periods = 0.5, []
    for iteration in range(600):
        value += 0.001 if 200 <= iteration < 400 else 0.0
        drive(scheduler, "a", iteration, value)
        periods.append(scheduler.maps["a"].period)
    assert periods[:7] == [2, 2, 4, 4, 4, 4, 8]  # at most twice the last one
    assert periods[199] == 100
    assert periods[399] == 20  # 0.001 an iteration: 0.02 in 20
    assert periods[599] == 100
    drive(scheduler, "a", at := scheduler.maps["a"].next, 0.0)
    assert scheduler.maps["a"].period == 3 and "changed by" in scheduler.maps["a"].why
    assert scheduler.maps["a"].next == at + 3
    assert scheduler.state is State.ACTIVE


@pytest.mark.parametrize(
    ("text", "duration", "expected"),
    [
        ("every:10", 5, Pace(10, 5, "every")),
        ("every:3", 5, Pace(3, 3, "every")),
        (" every:10:2 ", 5, Pace(10, 2, "every")),
        ("spartan:100", 1, Pace(100, 1)),
        ("adaptive:10-1000:4", 1, Pace(10, 4, "adaptive", 1000)),
    ],
)
def test_schedules_are_read_as_written(text: str, duration: int, expected: Pace) -> None:
    assert Pace.parse(text, duration) == expected
    assert Pace.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected every:PERIOD"),
        ("10", "expected every:PERIOD"),
        ("every", "expected every:PERIOD"),
        ("every:0", "1 <= duration <= period"),
        ("every:2:3", "1 <= duration <= period"),
        ("every:2-3", "longest period with adaptive alone"),
        ("adaptive:5", "longest period with adaptive alone"),
        ("adaptive:9-5", "longest >= period"),
        ("hourly:5", "expected every:PERIOD"),
    ],
)
def test_wrong_schedules_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pace.parse(text)


@given(st.lists(sparsities, min_size=1, max_size=120), st.data())
def test_a_resumed_run_is_the_same_run(values: list[float], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(values) - 1))
    parameters, paces = replace(SMALL, duration=2), {"b": Pace(5, 3), "c": Pace(3, 2, "adaptive", 20)}
    straight, resumed = Scheduler(parameters, paces), Scheduler(parameters, paces)
    for iteration, value in enumerate(values):
        if iteration == at:
            saved = json.loads(json.dumps(resumed.state_dict()))
            resumed = Scheduler(parameters, paces)
            resumed.load_state_dict(saved)
        for name in "abc":
            assert drive(straight, name, iteration, value) == drive(resumed, name, iteration, value)
    assert straight.state_dict() == resumed.state_dict()


@pytest.mark.parametrize(
    "wrong",
    [
        {"history": 0},
        {"sparse_enough": 1.5},
        {"stability": 0.0},
        {"stability": float("nan")},
        {"duration": 0},
        {"duration": 5},
        {"initial_period": 17},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="expected"):
        replace(SMALL, **wrong)


def test_published_values_are_the_defaults() -> None:
    defaults = Parameters()
    assert (defaults.history, defaults.sparse_enough) == (10, 0.3)
    assert (defaults.initial_period, defaults.hibernation_period) == (500, 10_000)


def test_misuse_is_refused() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.observing("a", 0)
    with pytest.raises(UsageError, match="not due"):
        scheduler.observing("a", 1)
    with pytest.raises(UsageError, match="not monitored"):
        scheduler.observed("b", 0, 0.5)
    with pytest.raises(UsageError, match="within 0..1"):
        scheduler.observed("a", 0, float("nan"))
    with pytest.raises(UsageError, match="hibernation period"):
        Scheduler(SMALL, {"a": Pace(17, 1)})
    with pytest.raises(UsageError, match="history=3"):
        Scheduler(replace(SMALL, history=4)).load_state_dict(scheduler.state_dict())
