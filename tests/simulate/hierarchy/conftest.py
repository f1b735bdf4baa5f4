"""Small machines and programs that exercise every part in few events."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from lamina.simulate.hierarchy import Device, Phase, Program, preset
from lamina.simulate.hierarchy.program import END, LDS, LOAD, STORE, VALU, WAIT

TINY: Mapping[str, Any] = {
    "cu.count": 2,
    "l1.bytes": 2048,
    "l2.bytes": 16384,
    "l2.banks": 2,
    "l2.ways": 4,
    "translation.l1_entries": 8,
    "translation.l2_entries": 1024,
    "dram.channels": 2,
    "launch_cycles": 0.0,
    "dispatch_cycles": 1.0,
}


@pytest.fixture
def tiny() -> Device:
    """Two compute units before an L2 of 16 KB."""
    return preset("mi6").changed(TINY)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """Any small machine."""

    def of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    return preset("mi6").changed(
        {
            **TINY,
            "cu.count": of(1, 2, 3),
            "cu.simds": of(1, 2, 4),
            "cu.valu_busy": of(1.0, 2.5, 4.0, 5.0),
            "cu.lds_bytes": of(4096, 16384, 65536),
            "cu.in_order_return": of(True, False),
            "l1.bytes": of(256, 1024, 4096),
            "l1.ways": of(1, 2, 4),
            "l1.fill": of(0.0, 19.0),
            "l1.mshrs": of(1, 4, 64),
            "l1.lines_per_cycle": of(0.25, 1.0, 3.0),
            "translation.enabled": of(True, False),
            "translation.walkers": of(1, 16),
            "translation.l2_entries": of(16, 1024),
            "translation.l2_ways": of(1, 16),
            "l2.bytes": of(4096, 16384),
            "l2.ways": of(1, 4, 16),
            "l2.mshrs": of(1, 64),
            "dram.mode": of("ideal", "banked"),
            "dram.latency": of(0.0, 100.0),
            "dram.cycles_per_line": of(0.3, 8.0),
            "dram.row_bytes": of(256, 2048),
            "dram.t_faw_ns": of(0.0, 80.0),
        }
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any small kernel: loads that share lines or not, waits anywhere, trips that differ."""

    def request(kind: int) -> Phase:
        return Phase(
            kind,
            1,
            base=64 * draw(st.integers(0, 40)),
            per_row=draw(st.sampled_from((0, 64, 4096))),
            per_column=draw(st.sampled_from((0, 128, 2048))),
            per_trip=draw(st.sampled_from((0, 64, 4096))),
            rows=draw(st.integers(1, 3)),
            pitch=draw(st.sampled_from((64, 512, 4096))),
            lines=draw(st.integers(1, 2)),
        )

    def body() -> tuple[Phase, ...]:
        kinds = draw(st.lists(st.sampled_from((VALU, LDS, LOAD, STORE, WAIT)), max_size=6))
        return (
            *(
                request(kind)
                if kind in (LOAD, STORE)
                else Phase(kind, draw(st.integers(0, 9)), scalar=draw(st.integers(0, 2)))
                for kind in kinds
            ),
            Phase(WAIT, 1),
        )

    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    trips = draw(st.lists(st.integers(0, 3), min_size=rows * columns, max_size=rows * columns))
    return Program(
        name="drawn",
        before=body(),
        loop=body(),
        after=(*body(), Phase(END, 1)),
        rows=rows,
        columns=columns,
        trips=np.array(trips, dtype=np.int64),
        bytes=1 << 17,
        instructions_per_workgroup=7,
        instructions_per_trip=3,
        registers=64,
        lds_bytes=4096,
        image=(130048, 130944),
    )
