"""Networks by choices: what is fitted together."""

from lamina.pipeline.study.plans import MOMENTS, together


def test_second_moments_fit_into_memory() -> None:
    inputs = {"a": 100, "b": 8000, "c": 9000, "d": 25088, "e": 10}
    groups = together(inputs)
    assert groups == [["a", "b"], ["c"], ["d"], ["e"]]
    assert all(len(names) == 1 or sum(inputs[name] ** 2 for name in names) <= MOMENTS for names in groups)
    assert together({}) == []
