from dataclasses import replace

import numpy as np
import pytest
from tests.simulate.hierarchy.conftest import TINY

from lamina.errors import UnsupportedError, UsageError
from lamina.simulate.hierarchy import Device, DramMemory, Program, gemm, preset, sample, simulate
from lamina.simulate.hierarchy.reference_memory import Dram

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
    assert estimate.interval[0] <= whole.cycles <= estimate.interval[1]
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


class Tiring(DramMemory):
    """Memory that takes longer with every line."""

    def reference(self) -> Dram:
        memory = super().reference()
        read = memory.read

        def slower(now: int, address: int, mark: int) -> int:
            return read(now, address, mark) + 40 * memory.reads

        memory.read = slower  # type: ignore[method-assign]
        return memory


def test_what_has_no_steady_rate_is_rejected(device: Device) -> None:
    with pytest.raises(UnsupportedError, match="expected the halves of a sample .* within 5%, got"):
        sample(gemm(1024, 64, 32), device, sets=6, impl="reference", memory=Tiring(device))


def test_workgroups_that_the_others_are_longer_than_are_rejected(device: Device) -> None:
    growing = np.arange(PROGRAM.workgroups, dtype=np.int64) // 16
    uneven: Program = replace(PROGRAM, trips=growing, bytes=1 << 22)
    with pytest.raises(UnsupportedError, match="expected the workgroups of a sample of .* as long as the others"):
        sample(uneven, device, sets=SETS)


@pytest.mark.parametrize("cus", [1, 2, 4])
@pytest.mark.parametrize("size", [(512, 1024, 256), (2048, 256, 96), (1024, 512, 128)], ids=str)
def test_the_interval_holds_on_grids_of_any_shape(size: tuple[int, int, int], cus: int) -> None:
    device = preset("mi6").changed({"cu.count": cus})
    program = gemm(*size, "corrected")
    whole, estimate = simulate(program, device), sample(program, device)
    assert estimate.sampled and estimate.workgroups < 0.8 * program.workgroups
    low, high = estimate.interval
    assert low <= whole.cycles <= high and estimate.relative_error <= 0.05


def test_a_record_says_that_it_was_sampled(device: Device) -> None:
    record = sample(PROGRAM, device, sets=SETS).record()
    assert record.sampled and record.relative_error is not None and 0 <= record.relative_error < 0.05
    assert record.device == "mi6" and record.config["cu.count"] == 2


def test_too_few_sets_are_rejected(device: Device) -> None:
    with pytest.raises(UsageError, match="sets = 3: expected at least 4"):
        sample(PROGRAM, device, sets=3)
