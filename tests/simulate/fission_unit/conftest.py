"""A small device of the kind that the kernel is written for, with memory that is never in its way."""

import pytest

from lamina.simulate.hierarchy import Device, preset

SMALL = {
    "cu.count": 1,
    "launch_cycles": 0.0,
    "l2.bytes": 2**18,
    "l2.banks": 4,
    "l2.lines_per_cycle": 2.0,
    "dram.channels": 4,
    "dram.mode": "ideal",
    "dram.latency": 50.0,
    "translation.enabled": False,
}


@pytest.fixture
def small() -> Device:
    return preset("titanx-pascal").changed(SMALL)
