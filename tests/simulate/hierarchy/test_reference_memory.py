"""Memory on cases small enough to add up by hand."""

import pytest

from lamina.simulate.hierarchy import preset
from lamina.simulate.hierarchy.reference_memory import Dram
from lamina.simulate.hierarchy.timing import TICKS, dram_timing_of


@pytest.mark.parametrize(("addresses", "hits"), [((0, 64, 128), 2), ((0, 2 * 16 * 2048 * 2, 0), 0)])
def test_banked_memory_keeps_rows_open(addresses: tuple[int, ...], hits: int) -> None:
    device = preset("mi6").changed({"dram.mode": "banked", "dram.channels": 1, "dram.interleave": 64})
    memory, times = Dram(dram_timing_of(device)), []
    for now, address in enumerate(addresses):
        times.append(memory.read(now * 1000 * TICKS, address, 0) - now * 1000 * TICKS)
    assert memory.row_hits == hits
    opened, hit, conflict = 14 + 14 + 4 + 10, 14 + 4 + 10, 14 + 14 + 14 + 4 + 10
    assert [time // TICKS for time in times] == [opened, *([hit] * 2 if hits else [conflict] * 2)]
