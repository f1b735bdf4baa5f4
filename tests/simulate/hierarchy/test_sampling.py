from dataclasses import replace

import numpy as np
import pytest
from tests.simulate.hierarchy.conftest import TINY

from lamina.errors import UnsupportedError, UsageError
from lamina.simulate.hierarchy import Device, Program, gemm, preset, sample, simulate

PROGRAM = gemm(2048, 128, 64)
SETS = 30


@pytest.fixture
def device() -> Device:
    """Four workgroups at a time."""
    return preset("mi6").changed({**TINY, "cu.lds_bytes": 8192})


@pytest.mark.parametrize("impl", ["core", "reference"])
def test_the_interval_holds_the_whole_run(device: Device, impl: str) -> None:
    program = PROGRAM if impl == "core" else gemm(2048, 64, 32)
    whole = simulate(program, device)
    estimate = sample(program, device, sets=SETS if impl == "core" else 22, impl=impl)  # type: ignore[arg-type]
    assert estimate.sampled
    assert estimate.workgroups < program.workgroups
    assert estimate.cycles == pytest.approx(whole.cycles, rel=0.03)
    assert abs(estimate.cycles / whole.cycles - 1) <= max(estimate.relative_error, 0.03)
    for exact in ("instructions", "l1_reads", "l1_writes"):
        assert estimate.counters[exact] == whole.counters[exact]
    assert estimate.counters["l2_reads"] == pytest.approx(whole.counters["l2_reads"], rel=0.1)


def test_a_sample_repeats(device: Device) -> None:
    one, two = sample(PROGRAM, device, sets=SETS), sample(PROGRAM, device, sets=SETS)
    assert (one.cycles, one.relative_error) == (two.cycles, two.relative_error)


def test_a_small_grid_is_run_whole(device: Device) -> None:
    program = gemm(64, 64, 32)
    estimate = sample(program, device)
    assert not estimate.sampled
    assert estimate.cycles == simulate(program, device).cycles
    record = estimate.record("conv1")
    assert (record.sampled, record.relative_error, record.layer) == (False, None, "conv1")


def test_what_has_no_steady_rate_is_refused(device: Device) -> None:
    growing = np.arange(PROGRAM.workgroups, dtype=np.int64) // 16
    uneven: Program = replace(PROGRAM, trips=growing, bytes=1 << 22)
    with pytest.raises(UnsupportedError, match="expected the halves of a sample .* within 5%, got"):
        sample(uneven, device, sets=SETS)


def test_a_record_says_that_it_was_sampled(device: Device) -> None:
    record = sample(PROGRAM, device, sets=SETS).record()
    assert record.sampled and record.relative_error is not None and 0 <= record.relative_error < 0.05
    assert record.device == "mi6" and record.config["cu.count"] == 2


def test_too_few_sets_are_refused(device: Device) -> None:
    with pytest.raises(UsageError, match="sets = 3: expected at least 4"):
        sample(PROGRAM, device, sets=3)
