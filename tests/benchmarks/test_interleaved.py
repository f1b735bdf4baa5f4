"""Interleaved timing returns the median round."""

from typing import Any

from benchmarks.interleaved import interleaved


def test_timers_are_interleaved_and_the_median_is_returned() -> None:
    turns = []
    times = {"a": iter([3.0, 1.0, 2.0]), "b": iter([9.0, 7.0, 8.0])}

    def timer(name: str) -> dict[str, Any]:
        turns.append(name)
        return {"median_us": next(times[name]), "n": len(turns)}

    found = interleaved({name: lambda name=name: timer(name) for name in times})  # type: ignore[misc]
    assert turns == ["a", "b"] * 3
    assert found == {"a": {"median_us": 2.0, "n": 5}, "b": {"median_us": 8.0, "n": 6}}
