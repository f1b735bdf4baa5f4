"""The search over thresholds, on functions whose front is known."""

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.methods.elimination.pareto import Choice, Journal, Point, choose, front, search
from lamina.errors import UsageError

LAYERS = {"a": [0.75, 0.5], "b": [0.5], "c": [0.9, 0.6, 0.3]}
COSTS = {"a": (1.0, 10.0), "b": (8.0, 3.0), "c": (0.5, 20.0)}  # accuracy lost and time taken, for all of a layer

points = st.lists(
    st.builds(Point, st.just({}), st.integers(0, 6).map(float), st.integers(1, 7).map(float)), max_size=14
)


def accuracy(choice: Choice) -> float:
    return 90 - sum(COSTS[name][0] * (1 - keep) for name, keep in choice.items())


def latency(choice: Choice) -> float:
    return 1 + sum(COSTS[name][1] * keep for name, keep in choice.items())


@given(points)
def test_a_front_is_what_none_beats(given_points: list[Point]) -> None:
    found = front(given_points)
    assert not any(one.beats(other) for one in given_points for other in found)
    assert all(any(one == other or one.beats(other) for one in found) for other in given_points)
    assert [p.latency for p in found] == sorted({p.latency for p in found})
    assert [p.accuracy for p in found] == sorted({p.accuracy for p in found})
    assert front(reversed(given_points)) == found


def test_of_steps_that_lose_nothing_the_one_that_gains_the_most_comes_first() -> None:
    gains, better = {"a": 1.0, "b": 4.0, "c": 3.0}, {"a": 1.0, "b": 0.0, "c": 0.0}  # the accuracy that leaving out adds
    result = search(
        {name: [0.5] for name in gains},
        lambda choice: 90 + sum(better[name] for name, keep in choice.items() if keep < 1),
        lambda choice: 10 - sum(gains[name] for name, keep in choice.items() if keep < 1),
    )
    pairs = [p.choice for p in result.points if list(p.choice.values()).count(0.5) == 2]
    assert pairs == [{"a": 1, "b": 0.5, "c": 0.5}]


def test_costs_that_add_up_give_the_true_front() -> None:
    result = search(LAYERS, accuracy, latency)
    every = [
        Point(choice, accuracy(choice), latency(choice))
        for keeps in product(*([1.0, *shares] for shares in LAYERS.values()))
        for choice in [dict(zip(LAYERS, keeps, strict=True))]
    ]
    assert result.dense == every[0]
    # The cheapest steps first: each composition on the way is on the front of all that could be chosen.
    assert set(map(str, result.front)) <= set(map(str, front(every)))
    assert result.front[0].choice == {"a": 0.5, "b": 0.5, "c": 0.3}
    assert result.front[-1] == result.dense
    assert len(result.points) <= 1 + 2 * 6


@given(st.integers(0, 12))
def test_a_killed_search_goes_on_where_it_was(tmp_path_factory: pytest.TempPathFactory, kill_after: int) -> None:
    path = tmp_path_factory.mktemp("search") / "journal.json"
    asked: list[str] = []

    def counted(choice: Choice) -> float:
        if len(asked) == kill_after:
            raise KeyboardInterrupt
        asked.append(json.dumps(choice))
        return accuracy(choice)

    def resumed(choice: Choice) -> float:
        asked.append(json.dumps(choice))
        return accuracy(choice)

    whole = search(LAYERS, accuracy, latency)
    if kill_after < len(whole.points):
        with pytest.raises(KeyboardInterrupt):
            search(LAYERS, counted, latency, journal=path)
    again = search(LAYERS, resumed, latency, journal=path)
    assert again == whole
    assert len(asked) == len(set(asked)) == len(whole.points)
    assert search(LAYERS, counted, latency, journal=path) == whole


def test_a_search_stops_where_too_much_is_lost() -> None:
    full, bounded = (search(LAYERS, accuracy, latency, max_accuracy_drop=drop) for drop in (100.0, 0.3))
    assert len(bounded.points) < len(full.points)
    assert set(map(str, bounded.points)) < set(map(str, full.points))


def test_a_point_is_chosen_by_what_is_asked() -> None:
    found = search(LAYERS, accuracy, latency)
    loose = choose(found.front, found.dense, max_accuracy_drop=1.0)
    assert loose.accuracy >= 89 and all(p.latency >= loose.latency for p in found.front if p.accuracy >= 89)
    fast = choose(found.front, found.dense, target_speedup=1.5)
    assert found.dense.latency / fast.latency >= 1.5
    assert all(p.accuracy <= fast.accuracy for p in found.front if found.dense.latency / p.latency >= 1.5)
    with pytest.raises(UsageError, match="drop of at most 0.1 at a speedup of at least 5"):
        choose(found.front, found.dense, max_accuracy_drop=0.1, target_speedup=5)
    with pytest.raises(UsageError, match=r"expected a drop of at most -1; the front has drops of .*: raise the drop$"):
        choose(found.front, found.dense, max_accuracy_drop=-1)
    with pytest.raises(UsageError, match="target_speedup: expected a number above 0, got 0"):
        choose(found.front, found.dense, target_speedup=0)
    with pytest.raises(UsageError, match="got neither"):
        choose(found.front, found.dense)


def test_a_journal_is_plain_and_of_one_search(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    search({"a": [0.5]}, accuracy, latency, journal=str(path), subject={"seed": 1})
    with pytest.raises(UsageError, match="journal: expected a path, got 3"):
        search({"a": [0.5]}, accuracy, latency, journal=3)  # type: ignore[arg-type]
    document = json.loads(path.read_text())
    assert document["subject"] == {"layers": {"a": [0.5]}, "seed": 1}
    assert document["answers"]['{"a": 0.5}'] == {"accuracy": 89.5, "latency": 6.0}
    assert [file.name for file in tmp_path.iterdir()] == ["journal.json"]
    with pytest.raises(UsageError, match="expected the journal of .*2.* got that of .*1"):
        search({"a": [0.5]}, accuracy, latency, journal=path, subject={"seed": 2})
    for broken in ("", "[]", '{"answers": 3}', path.read_text()[:-20]):
        path.write_text(broken)
        with pytest.raises(UsageError, match="expected a journal"):
            Journal(path, {})


def test_measurements_and_keep_ratios_out_of_range_are_refused() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(UsageError, match="accuracy of"):
            search({"a": [0.5]}, lambda _, bad=bad: bad, latency)  # type: ignore[misc]
    with pytest.raises(UsageError, match="above 0"):
        search({"a": [0.5]}, accuracy, lambda _: 0.0)
    with pytest.raises(UsageError, match="a: expected keep ratios above 0 and below 1"):
        search({"a": [1.0]}, accuracy, latency)
