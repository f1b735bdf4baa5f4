"""The decision between candidates, and the selector that times each question once."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lamina.accelerate.select import (
    DENSE,
    MIN_SPEEDUP,
    SHORT_US,
    Cache,
    Compiler,
    LayerCall,
    Lighter,
    Selector,
    decide,
    observe,
)
from lamina.errors import UnsupportedError, UsageError
from lamina.record import Timing, Turns

PROVENANCE = {"device": "a device"}


def timing(median: float, spread: float = 0.0) -> Timing:
    return Timing("cpu", "-", median, median - spread, median + spread, 9)


def test_the_fastest_wins_and_says_by_what() -> None:
    found = decide({DENSE: timing(25.0), "kernel": timing(9.5), "other": timing(12.0)}, "graph")
    assert (found.impl, found.reason) == ("kernel", "kernel: 9.5 us < other 12 us, dense 25 us")
    assert found.times_us == {DENSE: 25.0, "kernel": 9.5, "other": 12.0} and found.mode == "graph"
    assert found.speedup == pytest.approx(25 / 9.5)


@pytest.mark.parametrize(
    ("dense", "kernel", "words"),
    [
        (timing(10.0, 1.0), timing(9.0, 0.5), "within the spread"),
        (timing(10.0), timing(9.9), "less than 2% faster"),
        (timing(10.0), timing(11.0), "dense: 10 us < kernel 11 us"),
    ],
)
def test_dense_wins_unless_beaten_by_more_than_the_spread(dense: Timing, kernel: Timing, words: str) -> None:
    found = decide({DENSE: dense, "kernel": kernel}, "eager")
    assert found.impl == DENSE and words in found.reason and found.speedup == 1.0


@pytest.mark.parametrize(
    ("dense", "selected"), [(1090.0, DENSE), (1110.0, "other"), (1.07 * SHORT_US, "other"), (1.01 * SHORT_US, DENSE)]
)
def test_short_steps_may_need_to_be_faster_by_more(dense: float, selected: str) -> None:
    times = {DENSE: timing(dense), "other": timing(SHORT_US if dense > SHORT_US else 1000.0)}
    selector = Selector(lambda _: times, Cache(None, PROVENANCE), "eager", training=False, short_speedup=1.1)
    call = call_of(nn.Linear(4, 4), torch.randn(2, 4))
    assert selector.select("q", {DENSE: lambda: nn.Linear(4, 4), "other": nn.Identity}, call).impl == selected


@pytest.mark.parametrize(
    ("light", "dense", "selected", "words"),
    [
        (10.4, timing(20.0), "light", "light: 10.4 us < dense 20 us; fast 10 us is not faster by 5% and moves more"),
        (10.6, timing(20.0), "fast", "fast: 10 us < light 10.6 us, dense 20 us"),
        (9.0, timing(20.0), "light", "light: 9 us < fast 10 us, dense 20 us"),
        (10.4, timing(10.5), "fast", "fast: 10 us < light 10.4 us, dense 10.5 us"),  # light is not faster than dense
        (10.4, timing(9.0), DENSE, "dense: 9 us < fast 10 us, light 10.4 us"),
    ],
)
def test_what_moves_fewer_bytes_wins_where_it_is_about_as_fast(
    light: float, dense: Timing, selected: str, words: str
) -> None:
    times = {DENSE: dense, "fast": timing(10.0), "light": timing(light)}
    found = decide(times, "graph", lighter=["light", "absent"])
    assert found.impl == selected and found.reason.removesuffix(" bytes") == words


def test_candidates_say_that_they_move_fewer_bytes() -> None:
    times = {DENSE: timing(20.0), "fast": timing(10.0), "light": timing(10.1)}
    selector = Selector(lambda steps: times, Cache(None, PROVENANCE), "eager", training=False)
    call = observe(nn.Sequential(nn.Linear(2, 2)), ["0"], torch.randn(1, 2))["0"]
    made = {DENSE: lambda: nn.Linear(2, 2), "fast": lambda: nn.Linear(2, 2), "light": Lighter(lambda: nn.Linear(2, 2))}
    assert selector.select("a layer", made, call).impl == "light"


NINE = (1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0)
"""A machine that is disturbed in some rounds."""


@pytest.mark.parametrize(
    ("rounds", "lost", "wins"), [(9, 0, True), (9, 1, True), (9, 2, False), (8, 1, False), (6, 0, True), (5, 0, False)]
)
def test_a_disturbed_machine_hides_no_candidate_that_is_faster_turn_by_turn(
    rounds: int, lost: int, wins: bool
) -> None:
    dense = NINE[:rounds]
    ours = tuple(1.1 * us if index < lost else 0.9 * us for index, us in enumerate(dense))
    times = {DENSE: timing(5.0, 2.0), "kernel": timing(4.5, 2.0)}
    turns = Turns(times, {DENSE: dense, "kernel": ours})
    found = decide(times, "eager", turns=turns)
    assert found.impl == ("kernel" if wins else DENSE)
    assert decide(times, "eager").impl == decide(times, "eager", turns=Turns(times, {DENSE: dense})).impl == DENSE
    slight = {DENSE: timing(5.0, 2.0), "kernel": timing(4.95, 2.0)}
    assert decide(slight, "eager", turns=turns).impl == DENSE


TIMES = st.floats(0.1, 1e6)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), TIMES, max_size=3), TIMES, st.floats(0, 0.3))
def test_the_selected_is_never_slower_than_dense(others: dict[str, float], dense: float, spread: float) -> None:
    times = {name: timing(time, spread * time) for name, time in others.items()} | {DENSE: timing(dense)}
    found = decide(times, "eager")
    assert found.times_us[found.impl] <= dense
    if found.impl != DENSE:
        assert dense >= MIN_SPEEDUP * found.times_us[found.impl]
        assert times[found.impl].q3_us < dense


@pytest.mark.parametrize("times", [{}, {DENSE: timing(0.0)}, {DENSE: timing(float("nan"))}])
def test_no_time_is_no_decision(times: dict[str, Timing]) -> None:
    with pytest.raises(UsageError, match="expected at least one"):
        decide(times, "eager")


class Stepped:
    """A timer that runs each step once and gives times by name."""

    def __init__(self, **times: float) -> None:
        self.times, self.asked = times, 0

    def __call__(self, steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        self.asked += 1
        for step in steps.values():
            step()
        return {name: timing(self.times[name]) for name in steps}


def call_of(layer: nn.Module, x: torch.Tensor) -> LayerCall:
    return observe(layer, [""], x)[""]


def test_a_question_is_timed_once_and_kept_in_the_file(tmp_path: object) -> None:
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    candidates = {DENSE: lambda: layer, "twin": lambda: nn.Linear(4, 3)}
    timer = Stepped(dense=5.0, twin=2.0)
    first = Selector(timer, Cache(tmp_path, PROVENANCE), "eager", True)  # type: ignore[arg-type]
    found = first.select("question", candidates, call_of(layer, x))
    assert found.impl == "twin" and timer.asked == 1
    again = Selector(timer, Cache(tmp_path, PROVENANCE), "eager", True)  # type: ignore[arg-type]
    assert again.select("question", candidates, call_of(layer, x)) == found and timer.asked == 1
    for other in (
        Selector(timer, Cache(tmp_path, PROVENANCE), "eager", False),  # type: ignore[arg-type]
        Selector(timer, Cache(tmp_path, PROVENANCE), "graph", True),  # type: ignore[arg-type]
        Selector(timer, Cache(tmp_path, {"device": "another"}), "eager", True),  # type: ignore[arg-type]
    ):
        before = timer.asked
        other.select("question", candidates, call_of(layer, x))
        assert timer.asked == before + 1


def test_whatever_compiled_code_raises_refuses_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise TypeError("expected a tensor")

    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    candidates = {DENSE: lambda: layer, "odd": partial(Odd, 4, 4)}
    compiled, eager = (
        Selector(Stepped(dense=2.0), Cache(None, PROVENANCE), mode, True) for mode in ("compiled", "eager")  # type: ignore[arg-type]
    )
    found = compiled.select("q", candidates, call_of(layer, x))
    assert found.impl == DENSE and found.refusals == {"odd": "expected a tensor"}
    with pytest.raises(TypeError):  # in eager mode it is a fault of ours
        eager.select("q", candidates, call_of(layer, x))


def test_layers_that_the_compiler_does_not_trace_have_a_selector_of_their_own() -> None:
    graphs, eager = Stepped(dense=2.0, twin=3.0), Stepped(dense=9.0, twin=3.0)
    selector = Selector(graphs, Cache(None, PROVENANCE), "graph", True)
    selector.of_untraced = Selector(eager, Cache(None, PROVENANCE), "eager", True)
    found = []
    for make in (partial(nn.Linear, 4, 4), partial(nn.LSTM, 4, 4)):
        layer = make()
        candidates = {DENSE: partial(itemgetter(0), [layer]), "twin": make}
        found.append(selector.select("q", candidates, call_of(layer, torch.randn(2, 1, 4))))
    assert [(one.impl, one.mode) for one in found] == [(DENSE, "graph"), ("twin", "eager")]


def test_candidates_that_refuse_are_left_out_with_their_reason() -> None:
    layer = nn.Linear(4, 3)

    def refuses() -> nn.Module:
        raise UnsupportedError("not for this layer")

    selector = Selector(Stepped(dense=5.0), Cache(None, PROVENANCE), "eager", True)
    found = selector.select("q", {DENSE: lambda: layer, "other": refuses}, call_of(layer, torch.randn(2, 4)))
    assert found.impl == DENSE and found.refusals == {"other": "not for this layer"}
    assert "not for this layer" in found.reason


def test_a_dense_layer_that_does_not_run_is_an_error() -> None:
    layer = nn.Linear(4, 3)
    call = call_of(layer, torch.randn(2, 4))
    selector = Selector(Stepped(other=1.0), Cache(None, PROVENANCE), "eager", True)
    with pytest.raises(UsageError, match="dense layer does not run"):
        selector.select("q", {DENSE: lambda: nn.Linear(5, 3), "other": lambda: layer}, call)


def test_a_file_of_something_else_is_refused(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "selections.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match="delete it"):
        Cache(folder, PROVENANCE)


def test_a_compiler_runs_what_is_not_timed_yet_and_times_nothing() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    ran: list[str] = []

    class Told(nn.Linear):
        def __init__(self, name: str) -> None:
            super().__init__(3, 2)
            self.name = name

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ran.append(self.name)
            if self.name == "fails":
                raise RuntimeError("no such tile")
            return super().forward(x)

    def refusing() -> nn.Module:
        raise UnsupportedError("not here")

    def timer(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
        return {name: timing(1.0) for name in steps}

    selector = Selector(timer, Cache(None, {}), "eager", training=False)
    offered: dict[str, Callable[[], nn.Module]] = {
        DENSE: lambda: layer, "refuses": refusing, "fails": lambda: Told("fails"), "runs": lambda: Told("runs")
    }  # fmt: skip
    call = call_of(layer, x)
    found = Compiler(selector).select("question", offered, call)
    assert ran == ["fails", "runs"] and found.impl == DENSE
    assert selector.cache.get(selector.key("question", offered)) is None
    selector.select("question", offered, call)
    ran.clear()
    Compiler(selector).select("question", offered, call)
    assert not ran
