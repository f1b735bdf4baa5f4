"""What the tests of rungs share."""

from collections.abc import Callable

import pytest

from benchmarks.ladder.rungs import Time
from lamina.record import Timing


@pytest.fixture
def cold() -> Time:
    """Calls what it is to time, and says that it took 2 us."""

    def time(call: Callable[[], object]) -> Timing:
        call()
        return Timing("graph", "cold", 2.0, 1.0, 3.0, 9)

    return time
