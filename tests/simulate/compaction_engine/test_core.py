"""The compiled engine equals the readable one, bit for bit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.compaction_engine.conftest import engines, masks, memory_of, readers
from tests.simulate.hierarchy.conftest import TINY, devices

from lamina.simulate.compaction_engine.config import Engine, engine_timing
from lamina.simulate.compaction_engine.kernel import Kernel, sparse_gemm
from lamina.simulate.compaction_engine.memory import EngineMemory
from lamina.simulate.hierarchy import Device, preset, simulate


@settings(max_examples=120, deadline=None)
@given(data=st.data(), device=devices(), engine=engines())
def test_core_is_the_reference(data: st.DataObject, device: Device, engine: Engine) -> None:
    memory = memory_of(device, engine, data.draw(masks(columns=24)))
    program = data.draw(readers(memory.region.pitch, 24))
    core, reference = (simulate(program, device, memory=memory, impl=impl) for impl in ("core", "reference"))
    assert core.counters == reference.counters
    assert core.finished.tolist() == reference.finished.tolist()


@pytest.mark.parametrize("weights", ["column", "tile"])
@pytest.mark.parametrize("order", ["columns", "rows"])
@settings(max_examples=5, deadline=None)
@given(data=st.data(), engine=engines(), skip=st.booleans())
def test_core_is_the_reference_on_the_sparse_kernel(
    weights: str, order: str, data: st.DataObject, engine: Engine, skip: bool
) -> None:
    mask = data.draw(masks(rows=100, columns=9))
    kernel = Kernel.model_validate({"tile_rows": 32, "tile_columns": 3, "order": order, "weights": weights})
    work = sparse_gemm(70, 11, mask, engine, kernel, skip=skip)
    device = preset("mi6").changed({**TINY, "dram.mode": "banked", "l2.mshrs": 3})
    memory = EngineMemory(device, engine_timing(engine, mask.shape[0]), work.layout, work.region)
    core, reference = (simulate(work.program, device, memory=memory, impl=impl) for impl in ("core", "reference"))
    assert core.counters == reference.counters
    assert core.finished.tolist() == reference.finished.tolist()
