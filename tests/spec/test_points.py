"""Points of a published simulation: works at every combination of axes, each with its baseline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lamina.spec.points import Points

TWO = {
    "base": {"unit": "dense", "batch": 1},
    "baseline": {"density": 1.0},
    "axes": {"density": [0.5, 0.25], "pattern": ["iid", "spatial"]},
    "works": [
        {"name": "a", "settings": {"layer": "conv1"}},
        {"name": "b", "settings": {"layer": "conv2", "network": "other", "pattern": "channel"}, "times": 3},
    ],
}


def test_works_are_combined_with_the_axes() -> None:
    points = list(Points.model_validate(TWO).points("net"))
    assert [point.title for point in points[:2]] == ["a, density 0.5, pattern iid", "a, density 0.5, pattern spatial"]
    assert len(points) == 8 and [point.times for point in points] == [1] * 4 + [3] * 4
    first, last = points[0], points[-1]
    assert first.settings == {
        "network": "net", "unit": "dense", "batch": 1, "layer": "conv1", "density": 0.5, "pattern": "iid"
    }  # fmt: skip
    assert first.baseline == {**first.settings, "density": 1.0}
    assert last.settings["network"] == "other" and last.settings["pattern"] == "channel"


def test_changes_are_the_last_word_but_for_the_baseline() -> None:
    points = list(Points.model_validate(TWO).points("net", {"density": 0.1, "batch": 4}))
    assert len(points) == 4
    assert {(point.settings["batch"], point.settings["density"]) for point in points} == {(4, 0.1)}
    assert {(point.baseline["batch"], point.baseline["density"]) for point in points} == {(4, 1.0)}
    assert points[0].title == "a, density 0.1, pattern iid"


def test_the_description_has_the_shared_settings() -> None:
    points = Points.model_validate(TWO)
    assert points.description() == "Simulated with unit = dense, batch = 1, baseline density = 1.0."
    assert points.description({"batch": 4}) == "Simulated with unit = dense, batch = 4, baseline density = 1.0."
    alone = {"works": TWO["works"]}
    assert Points.model_validate(alone).description() == "Simulated."


def test_points_are_found_by_pattern_and_settings() -> None:
    points = list(Points.model_validate(TWO).points("net"))
    assert sum(point.matches("*", {}) for point in points) == 8
    assert sum(point.matches("[ac]", {"density": 0.5}) for point in points) == 2
    assert not any(point.matches("b", {"pattern": "iid"}) for point in points)
    assert not any(point.matches("a", {"nothing": "of this"}) for point in points)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"works": []}, "at least 1 item"),
        ({"works": [TWO["works"][0]] * 2}, "each name once, got a, a"),  # type: ignore[index]
        ({"axes": {"density": []}}, "axes.density: expected at least one value"),
        ({"bases": {}}, "Extra inputs"),
        ({"works": [{"name": "a", "settings": {}, "times": 0}]}, "greater than or equal to 1"),
    ],
)
def test_faulty_ones_are_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Points.model_validate({**TWO, **change})


@given(st.lists(st.integers(1, 4), max_size=3), st.integers(1, 3))
def test_there_are_as_many_as_combinations(sizes: list[int], works: int) -> None:
    points = Points.model_validate(
        {
            "axes": {f"axis{place}": list(range(size)) for place, size in enumerate(sizes)},
            "works": [{"name": f"work{number}", "settings": {}} for number in range(works)],
        }
    )
    found = list(points.points("net"))
    count = works
    for size in sizes:
        count *= size
    assert len(found) == count == len({point.title for point in found})
