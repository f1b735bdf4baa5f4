"""Runs of the engine and of what it is compared with."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.compaction_engine.conftest import engines, masks
from tests.simulate.hierarchy.conftest import TINY

from lamina.errors import SpecError, UsageError
from lamina.simulate.compaction_engine.config import Engine
from lamina.simulate.compaction_engine.kernel import Kernel
from lamina.simulate.compaction_engine.unit import CONTROLS, Control, SparseRun, simulate_sparse
from lamina.simulate.hierarchy import Device, gemm, preset, simulate
from lamina.simulate.hierarchy.gemm import TILE
from lamina.simulate.hierarchy.program import aligned

KERNEL = Kernel(tile_rows=32, tile_columns=3)
MASK = np.random.default_rng(0).random((100, 40)) < 0.5
DENSE = {"dense", "dense-small-l2", "dense-packed", "dense-prefetch-fp16"}
WITHOUT = {"dense", "dense-small-l2", "dense-packed", "kernel", "kernel-small-l2"}
WHOLE_L2 = {"dense", "dense-packed", "kernel"}


@pytest.fixture
def small() -> Device:
    return preset("mi6").changed({**TINY, "l2.bytes": 32768})


def _run(device: Device, control: Control = "engine", **settings: Any) -> SparseRun:
    return simulate_sparse(64, 40, MASK, device, kernel=KERNEL, control=control, **settings)


@pytest.mark.parametrize("control", CONTROLS)
@settings(max_examples=4, deadline=None)
@given(data=st.data(), engine=engines(), banked=st.booleans())
def test_core_is_the_reference(control: Control, data: st.DataObject, engine: Engine, banked: bool) -> None:
    device = preset("mi6").changed({**TINY, "dram.mode": "banked" if banked else "ideal", "l2.mshrs": 4})
    mask = data.draw(masks(rows=90, columns=9))
    one, two = (
        simulate_sparse(40, 10, mask, device, engine, KERNEL, control=control, impl=impl)
        for impl in ("core", "reference")
    )
    assert one.counters == two.counters and one.cycles == two.cycles
    assert one.estimate.run.finished.tolist() == two.estimate.run.finished.tolist()


@pytest.mark.parametrize("control", CONTROLS)
def test_only_what_shares_l2_asks_how_it_is_split(control: Control, small: Device) -> None:
    odd = Engine(l2_share=0.3)  # what is left is no whole number of sets
    if control in WHOLE_L2:
        assert _run(small, control, engine=odd).cycles == _run(small, control).cycles
    else:
        with pytest.raises(SpecError, match="l2_share"):
            _run(small, control, engine=odd)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_has_the_machine_that_its_name_says(control: Control, small: Device) -> None:
    run = _run(small, control)
    own = run.estimate.run.device
    assert own.l2.bytes == (32768 if control in WHOLE_L2 else 16384)
    assert (run.engine is None) == (control in WITHOUT)
    counters = run.counters
    assert ("engine_reads" in counters) == (control not in WITHOUT)
    if run.engine:
        assert 0 < counters["engine_delivered"] <= counters["engine_reads"] * run.engine.entries_per_line
        drops = control in ("engine", "lines", "compaction")
        assert run.engine.compaction == drops
        assert run.engine.narrow == (control in ("engine", "lines") or "fp16" in control)
        assert run.engine.prefetch == (control in ("engine", "lines") or "prefetch" in control)
    panels = aligned(64, TILE) // TILE * aligned(40, TILE) // TILE
    tiles = (aligned(64, 32) // 32) * (aligned(40, 3) // 3)
    assert run.estimate.workgroups == (panels if control in DENSE else tiles)


def test_dense_is_the_dense_kernel(small: Device) -> None:
    assert _run(small, "dense").counters == simulate(gemm(64, 64, 128, "corrected"), small).counters


def test_rows_of_a_are_loaded_for_what_a_control_multiplies(small: Device) -> None:
    kept, every, whole = (_run(small, control).counters for control in ("engine", "lines", "kernel"))
    tiles, columns = 2 * 14, 42  # of 32 rows, in tiles of 3 columns
    values = int(MASK.sum()) + int(MASK[:, :2].sum())
    lines = sum(-(-MASK[:, column % 40].sum() // 16) for column in range(columns))
    assert kept["l1_reads"] == tiles + 2 * int(lines) + 2 * 2 * values
    assert every["l1_reads"] == tiles + 2 * int(lines) + 2 * 2 * columns * 100
    assert whole["l1_reads"] == tiles + 2 * columns * 7 + 2 * 2 * columns * 100


def test_rates_are_those_of_the_counts(small: Device) -> None:
    run = _run(small)
    c, rates = run.counters, run.measures
    assert rates["l2_hit_rate"] == pytest.approx(1 - c["l2_misses"] / c["l2_reads"])
    assert rates["l1_hit_rate"] == pytest.approx(1 - c["l1_misses"] / c["l1_reads"])
    assert rates["l2_transactions"] == c["l2_reads"] + c["l2_writes"]
    assert rates["dram_gb_per_second"] == pytest.approx(c["dram_bytes"] / run.cycles)  # at 1 GHz
    assert rates["read_latency"] == pytest.approx(c["l1_latency_ticks"] / 64 / c["l1_reads"])
    shares = [rates[name] for name in ("buffer_hit_rate", "accurate_share", "prudent_share", "hasty_share")]
    assert sum(shares) == pytest.approx(1)
    assert 0 < rates["engine_occupancy"] < 1 and 0 < rates["search_occupancy"] < 1
    assert not [name for name in _run(small, "kernel").measures if "engine" in name or "sib" in name]


def test_a_record_keeps_device_engine_and_control(small: Device) -> None:
    record = _run(small, sets=None).record("conv2")
    assert record.layer == "conv2" and not record.sampled
    assert record.config["control"] == "engine" and record.config["sib_kb"] == 512
    assert record.config["l2.bytes"] == 16384
    assert record.counters["sib_hit_rate"] == _run(small).measures["sib_hit_rate"]
    assert "sib_kb" not in _run(small, "dense").record().config


def test_a_part_of_the_grid_tells_the_whole() -> None:
    device = preset("mi6").changed({**TINY, "cu.lds_bytes": 16384, "l2.bytes": 65536})
    mask = np.random.default_rng(1).random((64, 200)) < 0.4
    kernel = Kernel(tile_rows=16, tile_columns=4)
    whole, part = (simulate_sparse(64, 1600, mask, device, kernel=kernel, sets=sets) for sets in (None, 60))
    assert part.estimate.sampled and part.estimate.workgroups < whole.estimate.workgroups
    assert part.cycles == pytest.approx(whole.cycles, rel=0.05)
    assert part.counters["l1_reads"] == whole.counters["l1_reads"]


def test_invalid_runs_are_rejected(small: Device) -> None:
    with pytest.raises(UsageError, match=r"unknown.*prefetch"):
        _run(small, "prefetched")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected positive sizes"):
        simulate_sparse(0, 4, MASK, small)
    with pytest.raises(UsageError, match="expected a boolean mask"):
        simulate_sparse(4, 4, MASK.astype(np.float32), small)
    with pytest.raises(SpecError, match=r"l2\.bytes"):
        _run(small, engine=Engine(l2_share=0.3))
    with pytest.raises(SpecError, match="split the product along k"):
        simulate_sparse(4, 4, np.ones((40000, 2), dtype=np.bool_), small)
