"""Bounds by hand, and that no simulated run beats them."""

from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from tests.simulate.hierarchy.conftest import TINY
from tests.simulate.small import product

from lamina.pipeline.simulate.compaction import UNIT, LayerGain
from lamina.simulate.compaction_engine.bounds import bandwidth, bounds, peak
from lamina.simulate.compaction_engine.layer import CompactionEngine
from lamina.simulate.hierarchy import preset
from lamina.simulate.jobs import Job, execute
from lamina.simulate.workloads import RecordedMask, backward, pattern, write_masks
from lamina.simulate.workloads.convolutions import GRADIENT
from lamina.spec import Phase


def test_the_device_of_the_study_by_hand() -> None:
    mi6 = preset("mi6")
    assert peak(mi6) == 36 * 64 * 2
    assert bandwidth(mi6) == pytest.approx(mi6.dram.channels * 64)
    silicon = preset("mi6-silicon")
    assert bandwidth(silicon) * silicon.clock_ghz == pytest.approx(224 * 0.96, rel=4e-3)  # refresh; whole ticks


def test_a_product_bound_by_multiplications_gains_what_it_skips() -> None:
    layer, mi6 = product(channels=64, made=512, images=16), preset("mi6")
    found = bounds(layer, mi6, 0.25, 1.0)
    assert found.dense == layer.operations / peak(mi6)
    assert found.mac_skip == 4
    assert found.roofline == pytest.approx(4)


def test_a_product_bound_by_bytes_gains_by_lines() -> None:
    """A density of a half selects at least half of A."""
    layer, mi6 = product(made=1), preset("mi6").changed({"dram.cycles_per_line": 1000.0})
    a, b, _ = layer.bytes
    found = bounds(layer, mi6, 0.5, 0.75)
    assert found.dense == (a + b) / bandwidth(mi6)
    assert found.roofline == pytest.approx((a + b) / (0.5 * a + 0.75 * b))
    assert found.roofline_compact == pytest.approx((a + b) / (0.5 * a + 0.5 * b))


def test_the_bound_of_a_speedup_is_what_skipping_gains_times_what_the_dense_kernel_loses() -> None:
    found = bounds(product(), preset("mi6"), 0.25, 1.0)
    assert found.dense_fraction(4 * found.dense) == 0.25
    assert found.speedup(4 * found.dense) == pytest.approx(4 * found.roofline)


def test_nothing_but_zeros_has_no_bound() -> None:
    found = bounds(product(), preset("mi6"), 0.0, 0.0)
    assert found.mac_skip == found.roofline == found.speedup(1000) == float("inf")


SLOW = {"dram.mode": "ideal", "dram.cycles_per_line": 64.0}
"""Memory so slow that every run is close to the time of its bytes."""


SIZES = ((1, 8), (12, 32), (2, 256))
"""Images and output channels: of a small product, and of those that are large enough to sample."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Recorded masks of every map that the products below read: the input and the gradient of the output."""
    folder = tmp_path_factory.mktemp("masks")
    for images, made in SIZES:
        shapes = {"conv1": (images, 3, 8, 8), f"conv1{GRADIENT}": (images, made, 8, 8)}
        masks = [RecordedMask(name, 7, pattern("spatial", shape, 0.4, 3)) for name, shape in shapes.items()]
        write_masks(folder / f"{images}_{made}.npz", masks)
    return str(folder)


@pytest.mark.parametrize("sampled", [False, True], ids=["whole", "sampled"])
@pytest.mark.parametrize("phase", Phase)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_speedup_exceeds_its_bound(recording: str, phase: Phase, sampled: bool, data: st.DataObject) -> None:
    """For every product of a convolution, with generated or recorded zeros, on fast and on slow memory."""

    def of(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    images, made = (2, 256) if sampled and phase == Phase.BACKWARD_WEIGHT else (12, 32) if sampled else of(*SIZES)
    layer = backward(product(images=images, made=made), phase)
    few = {"cu.count": 1, "cu.lds_bytes": 16384} if sampled else {}
    device = preset("mi6").changed({**TINY, **few, **of({}, SLOW, {"dram.mode": "banked"})})
    zeros: dict[str, Any] = {"density": of(0.0, 0.1, 0.5, 1.0), "pattern": of("iid", "channel", "spatial")}
    if of(True, False):
        zeros = {"masks": f"{recording}/{images}_{made}.npz", "pattern": of("recorded", "iid")}
    chosen: dict[str, Any] = {"narrow": of(True, False), "prefetch": of(True, False), "weights": of("column", "tile")}
    chosen |= {"columns": of(32, 4096), "tile_rows": 16 if sampled else of(16, 64), "sampling": sampled}
    chosen |= {"tile_columns": 1 if sampled else of(0, 1), "sib_kb": 64, "buffer_kb": 16}
    chosen |= {"order": "rows" if sampled else of("columns", "rows")}  # a sample begins with a whole row
    jobs: dict[Any, Job] = {
        control: Job(UNIT, "net", images, layer, device, CompactionEngine(**zeros, **chosen, control=control))
        for control in ("engine", "dense")
    }
    results = [execute(job) for job in jobs.values()]
    gain = LayerGain(jobs, {control: each.run for control, each in zip(jobs, results, strict=True)})
    assume(all(each.run for each in results))  # a sample may be refused
    limits, dense, engine, speedup = gain.bounds, gain.runs["dense"], gain.runs["engine"], gain.speedup()
    assert limits and dense and engine and speedup and gain.speedup_bound
    assert engine.sampled == sampled
    assert engine.cycles >= limits.skipping and dense.cycles >= limits.dense
    assert speedup <= gain.speedup_bound
    event(f"tightness {min(1.0, speedup / gain.speedup_bound):.1f}")
