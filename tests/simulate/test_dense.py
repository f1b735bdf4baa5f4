import pytest
from pydantic import ValidationError
from tests.simulate.hierarchy.conftest import TINY
from tests.simulate.small import product

from lamina.errors import UnsupportedError, UsageError
from lamina.simulate.dense import UNIT, Dense, dense
from lamina.simulate.hierarchy import Device, gemm, preset, sample, simulate


@pytest.fixture
def device() -> Device:
    return preset("mi6").changed(TINY)


def test_a_layer_is_its_product_in_whole_tiles(device: Device) -> None:
    done = dense(product(), device, Dense())
    whole = simulate(gemm(32, 128, 32, "corrected"), device)
    assert (done.cycles, done.counters) == (whole.cycles, whole.counters)
    assert done.kernel == "gemm[32,128,32,corrected]" and not done.sampled


def test_the_shipped_kernel_reads_fewer_rows_of_a(device: Device) -> None:
    layer = product(made=64)
    shipped, corrected = (dense(layer, device, Dense(kernel=kernel)) for kernel in ("shipped", "corrected"))
    assert shipped.counters["l2_misses"] < corrected.counters["l2_misses"]
    assert shipped.kernel.endswith("shipped]")


def test_groups_run_one_after_another(device: Device) -> None:
    one = dense(product(channels=3, made=8), device, Dense())
    three = dense(product(channels=9, made=24, groups=3), device, Dense())
    assert three.cycles == 3 * one.cycles
    assert three.counters == {name: 3 * value for name, value in one.counters.items()}


def test_sampling_tells_its_interval(device: Device) -> None:
    device = device.changed({"cu.lds_bytes": 8192})
    layer, options = product(made=2048), Dense(sampling=True, sets=30)
    done = dense(layer, device, options)
    estimate = sample(gemm(2048, 128, 32, "corrected"), device, sets=30)
    assert done.sampled and done.cycles == estimate.cycles and done.relative_error == estimate.relative_error
    assert estimate.interval[0] <= dense(layer, device, Dense()).cycles <= estimate.interval[1]


def test_both_implementations_agree(device: Device) -> None:
    core, reference = (dense(product(), device, Dense(impl=impl)) for impl in ("core", "reference"))
    assert (core.cycles, core.counters) == (reference.cycles, reference.counters)


def test_what_does_not_fit_is_rejected(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"raise dram.bytes"):
        dense(product(), device.changed({"dram.bytes": 4096}), Dense())
    monkeypatch.setattr("lamina.simulate.hierarchy.sampling.DISAGREE", -1.0)  # so that none agree
    with pytest.raises(UnsupportedError, match="of a sample of 20"):
        dense(product(made=4096), device.changed({"cu.lds_bytes": 8192}), Dense(sampling=True, sets=4))
    for wrong in ({"sets": 3}, {"kernel": "mended"}, {"sampling": 1}, {"sib_kb": 1}):
        with pytest.raises(ValidationError):
            Dense(**wrong)  # type: ignore[arg-type]


def test_the_baseline_adds_no_memory(device: Device) -> None:
    assert UNIT.memory(device, Dense()) == 0
