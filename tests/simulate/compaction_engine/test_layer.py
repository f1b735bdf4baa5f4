"""A convolution with the engine: its columns, groups and controls, as a unit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tests.simulate.hierarchy.conftest import TINY
from tests.simulate.small import product

from lamina.errors import SpecError, UsageError
from lamina.simulate.compaction_engine.config import Engine, engine_timing
from lamina.simulate.compaction_engine.kernel import fitting
from lamina.simulate.compaction_engine.layer import UNIT, CompactionEngine, compaction_engine, mask_of
from lamina.simulate.compaction_engine.unit import CONTROLS
from lamina.simulate.dense import Dense, dense
from lamina.simulate.hierarchy import Device, preset
from lamina.simulate.jobs import Job, execute, unit
from lamina.simulate.workloads import ConvolutionGemm, backward
from lamina.spec import Phase

SMALL = {"sib_kb": 16, "buffer_kb": 16}


@pytest.fixture
def device() -> Device:
    return preset("mi6").changed(TINY)


def run(device: Device, layer: ConvolutionGemm | None = None, **settings: Any) -> Any:
    return compaction_engine(layer or product(), device, CompactionEngine(**{**SMALL, **settings}))


def test_all_columns_are_looked_at_where_they_are_few() -> None:
    layer = product()
    options = CompactionEngine(density=0.3, seed=4)
    assert np.array_equal(mask_of(layer, options), layer.columns(options.mask(layer)))


def test_many_columns_are_stood_for_by_runs_spread_over_images() -> None:
    layer = product(images=8)
    mask = mask_of(layer, CompactionEngine(density=0.3, columns=64))
    part = replace(layer, n=layer.n // 2, map=(4, *layer.map[1:]))
    whole = part.columns(CompactionEngine(density=0.3).mask(part))
    assert mask.shape == (layer.k, 64)
    assert np.array_equal(mask[:, :32], whole[:, :32]) and np.array_equal(mask[:, 32:], whole[:, -32:])


def test_groups_take_turns() -> None:
    layer = product(channels=6, made=8, groups=2, images=4)
    options = CompactionEngine(pattern="channel", density=0.5, seed=1)
    mask, values = mask_of(layer, options), options.mask(layer)
    for run_, group in ((0, 0), (1, 1), (2, 0)):
        columns = range(32 * run_, min(32 * run_ + 32, layer.n))
        assert np.array_equal(mask[:, columns.start : columns.stop], layer.columns(values, group, columns))


def test_backward_products_read_their_own_maps() -> None:
    """The gradient of the output, and the transposed columns of the input, alternating between groups."""
    layer = product(channels=6, made=8, groups=2, images=4)
    options = CompactionEngine(density=0.3, seed=4)
    data, weights = backward(layer, Phase.BACKWARD_DATA), backward(layer, Phase.BACKWARD_WEIGHT)
    values = options.mask(data)
    assert values.shape == (4, 8, 8, 8)
    first = range(32)
    assert np.array_equal(mask_of(data, options)[:, :32], data.columns(values, 0, first))
    both = np.concatenate([weights.columns(options.mask(weights), group) for group in (0, 1)], axis=1)
    assert np.array_equal(mask_of(weights, options), both)
    assert np.array_equal(mask_of(weights, options.model_copy(update={"columns": 20})), both[:, :20])


@pytest.mark.parametrize("phase", [Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT])
def test_backward_products_are_faster_with_fewer_values(device: Device, phase: Phase) -> None:
    layer = backward(product(), phase)
    half, few = (run(device, layer, density=density) for density in (0.5, 0.1))
    assert few.cycles < half.cycles and few.counters["density"] < half.counters["density"]
    core, reference = (run(device, layer, density=0.3, impl=impl) for impl in ("core", "reference"))
    assert (core.cycles, core.counters) == (reference.cycles, reference.counters)


def test_a_column_of_too_many_rows_is_refused_before_its_mask_is_made() -> None:
    wide = backward(product(images=2000), Phase.BACKWARD_WEIGHT)
    with pytest.raises(UsageError, match="expected columns of at most 65535 rows, got 128000"):
        mask_of(wide, CompactionEngine())


def test_channels_may_run_fastest() -> None:
    layer = product()
    mask = mask_of(layer, CompactionEngine(density=0.3, along="tap"))
    assert np.array_equal(mask, layer.columns(CompactionEngine(density=0.3).mask(layer), order="tap"))


def test_groups_run_one_after_another_and_rates_stay(device: Device) -> None:
    one = run(device, product(channels=3, made=8), density=1.0)
    three = run(device, product(channels=9, made=24, groups=3), density=1.0)
    assert three.cycles == 3 * one.cycles
    for name in ("l2_reads", "l2_transactions", "dram_lines", "engine_lines"):
        assert three.counters[name] == 3 * one.counters[name]
    for name in ("l2_hit_rate", "read_latency", "sib_hit_rate", "density", "line_density"):
        assert three.counters[name] == one.counters[name]


def test_the_record_says_how_dense_the_columns_were(device: Device) -> None:
    done = run(device, density=0.25, seed=3)
    mask = mask_of(product(), CompactionEngine(density=0.25, seed=3))
    assert done.counters["density"] == mask.mean()
    assert 0 < done.counters["density"] < done.counters["line_density"] <= 1


def test_fewer_values_take_less_time(device: Device) -> None:
    times = [run(device, product(made=64), density=density).cycles for density in (1.0, 0.5, 0.1)]
    assert times == sorted(times, reverse=True) and times[0] > times[2]


def test_the_dense_control_is_the_dense_unit(device: Device) -> None:
    assert run(device, control="dense").cycles == dense(product(), device, Dense()).cycles


ZEROS = {"engine", "lines", "compaction"}


@pytest.mark.parametrize("control", CONTROLS)
def test_every_control_runs_and_both_implementations_agree(device: Device, control: str) -> None:
    core, reference = (run(device, control=control, impl=impl) for impl in ("core", "reference"))
    assert core.cycles == reference.cycles and core.counters == reference.counters
    assert ("density" in core.counters) == (control in ZEROS)


def test_settings_that_decide_nothing_are_not_kept() -> None:
    plain = CompactionEngine(control="dense")
    assert CompactionEngine(control="dense", density=0.1, sib_kb=1, tile_columns=4, l2_share=0.25) == plain
    assert CompactionEngine(control="kernel", tile_columns=4, sib_kb=1).tile_columns == 4
    assert CompactionEngine(control="kernel-small-l2", l2_share=0.75).l2_share == 0.75
    assert CompactionEngine(control="prefetch", sib_kb=1, density=0.1).sib_kb == 1
    assert CompactionEngine(control="lines", density=0.1).density == 0.1


def test_memory_is_what_the_engine_adds_less_what_it_takes() -> None:
    device, half = preset("mi6"), preset("mi6").l2.bytes // 2
    assert UNIT.memory(device, CompactionEngine()) == 2 * 512 * 1024 - half
    assert UNIT.memory(device, CompactionEngine(control="dense")) == 0
    assert UNIT.memory(device, CompactionEngine(control="kernel-small-l2")) == -half
    assert UNIT.memory(device, CompactionEngine(sib_kb=64, l2_share=0.0)) == (64 + 512) * 1024


@pytest.mark.parametrize(("rows", "wide"), [(576, 16), (1600, 16), (2304, 8), (3456, 8), (4608, 4), (27, 16)])
def test_tiles_are_as_wide_as_the_information_block_permits(rows: int, wide: int) -> None:
    mi6, engine = preset("mi6"), Engine()
    active, timing = 432 * wide, engine_timing(engine, rows)
    assert fitting(rows, engine, mi6) == wide
    assert active <= timing.sets * timing.ways and (wide == 16 or 2 * active > timing.sets * timing.ways)
    assert fitting(rows, Engine(sib_kb=16), mi6) == 1


def test_the_width_of_a_tile_may_be_given(device: Device) -> None:
    assert run(device).counters["tile_columns"] == 16
    assert run(device, tile_columns=4).counters["tile_columns"] == 4
    assert "tile_columns" not in run(device, control="dense").counters


def test_the_unit_is_found_by_name(device: Device) -> None:
    assert unit("compaction-engine") is UNIT
    done = execute(Job("compaction-engine", "tiny", 2, product(), device, CompactionEngine(**SMALL)))
    assert done.run is not None and done.to_dict()["l2_hit_rate"] is not None


def test_what_has_no_meaning_is_rejected(device: Device) -> None:
    with pytest.raises(UsageError, match=r"raise dram.bytes"):
        run(device.changed({"dram.bytes": 4096}))
    with pytest.raises(SpecError, match="l2.bytes"):
        run(device, l2_share=0.3)
    with pytest.raises(SpecError, match="sib_kb = 1"):
        run(device, sib_kb=1, sib_ways=64)
    for wrong in (
        {"control": "off"},
        {"columns": 0},
        {"along": "row"},
        {"sib": 1},
        {"density": float("nan")},
    ):
        with pytest.raises(ValidationError):
            CompactionEngine(**wrong)  # type: ignore[arg-type]
