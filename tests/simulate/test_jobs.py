import dataclasses
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from tests.simulate.small import job, product

from lamina.errors import MissingError, UsageError
from lamina.record import SimRun
from lamina.simulate import jobs
from lamina.simulate.dense import Dense
from lamina.simulate.jobs import Unit, execute, key_of, unit


def test_a_run_says_what_was_asked() -> None:
    asked = job(kernel="shipped")
    run = execute(asked).run
    assert run is not None
    assert (run.layer, run.device, run.kernel) == ("conv1", "mi6", "gemm[32,128,32,shipped]")
    assert run.config == asked.config
    assert run.config["device.l2.bytes"] == 16384 and run.config["kernel"] == "shipped"
    assert key_of(json.loads(json.dumps(dict(run.config)))) == asked.key


@pytest.mark.parametrize(
    "other",
    [
        job(kernel="shipped"),
        job(device={"l2.bytes": 32768}),
        job(product(layer="conv2")),
        job(product(made=16)),
        dataclasses.replace(job(), batch=4),
        dataclasses.replace(job(), network="other"),
        dataclasses.replace(job(), unit="other"),
    ],
    ids=["option", "device", "layer", "shape", "batch", "network", "unit"],
)
def test_whatever_differs_makes_another_key(other: jobs.Job) -> None:
    assert other.key != job().key
    assert job().key == job().key


def test_cycles_become_microseconds() -> None:
    result = execute(job(device={"clock_ghz": 2.0}))
    assert result.run is not None and result.microseconds == pytest.approx(result.run.cycles / 2000)


def test_rows_are_plain_values() -> None:
    result = execute(job(device={"clock_ghz": 2.0}))
    row = result.to_dict()
    assert result.run is not None and result.microseconds is not None
    counters = result.run.counters
    assert (row["layer"], row["groups"], row["m"], row["n"], row["k"]) == ("conv1", 1, 8, 128, 27)
    assert row["tflops"] == pytest.approx(2 * 8 * 128 * 27 / result.microseconds / 1e6)
    assert row["l2_hit_rate"] == pytest.approx(1 - counters["l2_misses"] / counters["l2_reads"])
    assert row["dram_gbs"] == pytest.approx(counters["dram_bytes"] / result.microseconds / 1e3)
    failed = dataclasses.replace(result, run=None, reason="why").to_dict()
    assert list(failed) == list(row) and failed["cycles"] is None and failed["reason"] == "why"


def test_a_refusal_is_a_result() -> None:
    result = execute(job(device={"dram.bytes": 4096}))
    assert result.run is None and result.microseconds is None and "dram.bytes" in result.reason


def test_a_fault_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> SimRun:
        raise ZeroDivisionError

    own(monkeypatch, Unit("own", Dense, broken, lambda device, options: 0))
    with pytest.raises(ZeroDivisionError):
        execute(dataclasses.replace(job(), unit="own"))


def test_what_is_not_installed_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.simulate.hierarchy.unit.find_spec", lambda name: None)
    with pytest.raises(MissingError, match="numba"):
        execute(job())
    assert execute(job(impl="reference")).run is not None


def test_sram_counts_what_the_unit_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    own(monkeypatch, Unit("own", Dense, lambda *_: SimRun("", "", "", {}, 1, {}), lambda device, options: options.sets))
    dense = job(device={"cu.count": 2, "l1.bytes": 2048, "cu.lds_bytes": 4096, "l2.bytes": 16384})
    assert dense.sram_bytes == 2 * (2048 + 4096) + 16384
    other = dataclasses.replace(dense, unit="own", options=Dense(sets=100))
    assert other.sram_bytes == dense.sram_bytes + 100


def test_an_unknown_unit_is_rejected() -> None:
    assert unit("dense").name == "dense"
    with pytest.raises(UsageError, match="did you mean 'dense'"):
        unit("dence")


def own(monkeypatch: pytest.MonkeyPatch, made: Unit) -> None:
    """A unit of one's own, by name."""
    module = ModuleType("own_unit")
    module.__dict__.update(vars(SimpleNamespace(UNIT=made)))
    monkeypatch.setitem(sys.modules, "own_unit", module)
    monkeypatch.setitem(jobs.MODULES, "own", "own_unit")
