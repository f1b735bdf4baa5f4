import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError, UsageError
from lamina.simulate.hierarchy import Device, gemm, occupancy, preset, simulate
from lamina.simulate.hierarchy.program import LDS, LOAD, STORE, VALU

TILES = st.integers(1, 40)


@given(TILES, TILES, TILES)
def test_counts_are_those_of_the_kernel(m: int, n: int, k: int) -> None:
    program = gemm(32 * m, 32 * n, 32 * k)
    assert program.workgroups == m * n
    assert program.instructions == m * n * (154 + 1093 * k)
    assert program.requests(LOAD) == m * n * (128 * k + 1)
    assert program.requests(STORE) == m * n * 64


def test_a_pass_holds_the_kernel_s_instructions() -> None:
    phases = gemm(32, 32, 32).loop

    def count(*kinds: int) -> int:
        return sum(phase.count for phase in phases if phase.kind in kinds)

    assert (count(VALU), count(LDS), count(LOAD)) == (924, 60, 36)


@given(TILES, TILES, TILES, st.sampled_from(["shipped", "corrected"]))
def test_every_address_lies_in_its_matrix(m: int, n: int, k: int, variant: str) -> None:
    program = gemm(32 * m, 32 * n, 32 * k, variant)  # type: ignore[arg-type]
    for phase in (*program.before, *program.loop, *program.after):
        if phase.kind in (LOAD, STORE):
            last = phase.base + (m - 1) * phase.per_row + (n - 1) * phase.per_column + (k - 1) * phase.per_trip
            assert phase.base % 64 == 0
            assert last + (phase.rows - 1) * phase.pitch + 64 * phase.lines <= program.bytes
    assert all(address < program.bytes for address in program.image)


def test_wrong_sizes_are_told_together() -> None:
    with pytest.raises(SpecError) as caught:
        gemm(0, 33, 64)
    assert len(caught.value.faults) == 2


def test_twelve_workgroups_fit_a_compute_unit(tiny: Device) -> None:
    assert occupancy(gemm(32, 32, 32), preset("mi6")) == 12
    assert occupancy(gemm(32, 32, 32), tiny.changed({"cu.lds_bytes": 9000})) == 2
    with pytest.raises(UsageError, match="does not fit on mi6: a workgroup needs 76 registers"):
        occupancy(gemm(32, 32, 32), tiny.changed({"cu.lds_bytes": 4000}))


def test_what_cannot_be_run_is_rejected(tiny: Device) -> None:
    program = gemm(64, 64, 32)
    with pytest.raises(UsageError, match="needs .* bytes, mi6 has 1000"):
        simulate(program, tiny.changed({"dram.bytes": 1000}))
    with pytest.raises(UsageError, match="impl = 'fast': expected 'core' or 'reference'"):
        simulate(program, tiny, impl="fast")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="workgroups = 9: expected 1 to the 4"):
        simulate(program, tiny, workgroups=9)


def test_a_run_becomes_a_record(tiny: Device) -> None:
    run = simulate(gemm(32, 32, 32), tiny)
    record = run.record("fc1")
    assert (record.layer, record.kernel, record.device) == ("fc1", "gemm[32,32,32,shipped]", "mi6")
    assert record.config["impl"] == "core" and record.config["l2.bytes"] == 16384
    assert record.cycles == run.cycles and not record.sampled
    assert run.microseconds == pytest.approx(run.cycles / 1000)
