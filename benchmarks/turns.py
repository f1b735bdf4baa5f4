"""Times that are taken in turns, so that all meet the clock rates that a GPU runs through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeVar

Name = TypeVar("Name")
ROUNDS = 3


def in_turns(timers: Mapping[Name, Callable[[], dict[str, Any]]]) -> dict[Name, dict[str, Any]]:
    """What each timer tells of its ``median_us``: of several rounds the one in the middle."""
    rounds = [{name: timer() for name, timer in timers.items()} for _ in range(ROUNDS)]
    return {name: sorted((one[name] for one in rounds), key=itemgetter("median_us"))[ROUNDS // 2] for name in timers}
