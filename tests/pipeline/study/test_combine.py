"""Plans in sequence: each saves more than the one before it, and what damages nothing is always in."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lamina.pipeline.study.combine import Option, furthest, sequence, spread

OPTION = st.builds(
    Option,
    impl=st.sampled_from([f"circulant[block_size={k}]" for k in (16, 32, 64, 128)]),
    saved_us=st.integers(-10, 100),
    damage=st.one_of(st.just(0.0), st.floats(1e-6, 10)),
)
OPTIONS = st.dictionaries(st.sampled_from(["conv1", "conv2", "fc1", "fc2"]), st.lists(OPTION, max_size=5), max_size=4)


def test_a_layer_goes_along_its_convex_hull() -> None:
    options = {"fc": [Option("a", 10, 1), Option("b", 12, 5), Option("c", 30, 4), Option("d", 5, 3)]}
    # b saves less than c at more damage, d less than a at more damage.
    assert [plan.choice for plan in sequence(options)] == [{}, {"fc": "a"}, {"fc": "c"}]


def test_the_step_that_saves_the_most_for_its_damage_comes_first() -> None:
    options = {"fc": [Option("a", 10, 10)], "conv": [Option("b", 8, 1)]}
    assert [plan.choice for plan in sequence(options)] == [{}, {"conv": "b"}, {"conv": "b", "fc": "a"}]


def test_what_damages_nothing_is_in_every_plan() -> None:
    options = {"fc": [Option("fused", 3, 0.0)], "conv": [Option("b", 8, 1)]}
    plans = sequence(options)
    assert plans[0].choice == {"fc": "fused"} and plans[0].saved_us == 3
    assert all(plan.choice["fc"] == "fused" for plan in plans)


def test_what_saves_nothing_is_in_no_plan() -> None:
    assert [plan.choice for plan in sequence({"fc": [Option("a", 0.0, 0.0), Option("b", -1, 0.0)]})] == [{}]


@given(OPTIONS)
def test_each_plan_saves_more_than_the_one_before(options: dict[str, list[Option]]) -> None:
    plans = sequence(options)
    saved = [plan.saved_us for plan in plans]
    assert all(before < after for before, after in pairwise(saved))
    assert saved[-1] == sum(max([0, *(one.saved_us for one in row)]) for row in options.values())


@given(OPTIONS)
def test_damage_rises_along_the_sequence(options: dict[str, list[Option]]) -> None:
    def damage(choice: dict[str, str], saved: float) -> float:
        total = 0.0
        for layer, impl in choice.items():
            total += min(one.damage for one in options[layer] if one.impl == impl and one.saved_us > 0)
        return total

    plans = sequence(options)
    unique = all(len({one.impl for one in row}) == len(row) for row in options.values())
    if unique:
        damages = [damage(dict(plan.choice), plan.saved_us) for plan in plans]
        assert damages == sorted(damages)


@given(st.integers(1, 40), st.integers(0, 40))
def test_bisection_finds_the_last_accepted_plan(count: int, last: int) -> None:
    last = min(last, count - 1)
    asked: list[int] = []

    def accepted(index: int) -> bool:
        asked.append(index)
        return index <= last

    for last_first in (True, False):
        assert furthest(count, accepted, last_first) == last
        assert len(asked) <= last_first + max(count - 1, 1).bit_length()
        asked.clear()


def test_without_time_the_last_known_plan_is_taken() -> None:
    answers = iter([False, True, None])
    assert furthest(9, lambda index: next(answers)) == 4
    answers = iter([True, None])
    assert furthest(9, lambda index: next(answers), last_first=False) == 4


@given(st.integers(1, 100), st.integers(2, 10))
def test_points_spread_over_both_ends(count: int, points: int) -> None:
    found = spread(count, points)
    assert found[0] == 0 and found[-1] == count - 1
    assert found == sorted(set(found)) and len(found) <= max(points, 1)
