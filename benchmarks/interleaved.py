"""Interleaved (A/B) timing, so that a drift of the GPU's clock affects all candidates alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeVar

Name = TypeVar("Name")
ROUNDS = 3


def interleaved(timers: Mapping[Name, Callable[[], dict[str, Any]]]) -> dict[Name, dict[str, Any]]:
    """The result of each timer with the median ``median_us`` of several interleaved rounds."""
    rounds = [{name: timer() for name, timer in timers.items()} for _ in range(ROUNDS)]
    return {name: sorted((one[name] for one in rounds), key=itemgetter("median_us"))[ROUNDS // 2] for name in timers}
