"""What the simulator refuses before it runs."""

from dataclasses import replace

import pytest

from lamina.errors import UsageError
from lamina.simulate.hierarchy import gemm, preset, simulate

PROGRAM = gemm(32, 32, 128, "shipped")


def test_addresses_beyond_the_footprint_are_rejected() -> None:
    with pytest.raises(UsageError, match="expected addresses from 0 to its"):
        simulate(replace(PROGRAM, bytes=PROGRAM.reach[1] - 1), preset("mi6"), impl="reference")


def test_addresses_below_zero_are_rejected() -> None:
    below = replace(PROGRAM, loop=tuple(replace(phase, base=-64) for phase in PROGRAM.loop))
    with pytest.raises(UsageError, match="reaches from -64"):
        simulate(below, preset("mi6"), impl="reference")
