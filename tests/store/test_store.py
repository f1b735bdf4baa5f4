"""What every store does, whatever database is below it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lamina.errors import StoreError, UsageError
from lamina.record import (
    Counter,
    Coverage,
    Epoch,
    KernelRun,
    Key,
    LayerRun,
    Roofs,
    Run,
    SimRun,
    Sparsity,
    Study,
    Timing,
    Trial,
    WhatIf,
)
from lamina.record.study import Measured, Settings
from lamina.store import Store, open_store
from lamina.store.schema import metadata

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]

EPOCH = Epoch(1, 400, 0.1, 2.25, 0.125, 2.5, 0.0625, 12.5)
ROOFS = Roofs("a chip", "2026-01-02T03:04:05Z", 2, {"torch": "2.13.0"}, 10.5, 8.25, {"fp32": 99.5}, 5.0, 6.0)
KEY = Key("conv1", "forward", "dense", "fp32", "nchw", 32)
COVERAGE = Coverage("dense", "fp32", "nchw", 32, 120, 900.5, {"stray<int>": 1.5})
BEFORE = Timing("events", "warm", 10.0, 9.5, 10.5, 20)
WHAT_IF = WhatIf("fusion", "linear + relu", "fc", "forward", "tf32", 32, BEFORE, 8.0, "bytes saved", None, reason="no")
SPARSITY = Sparsity("conv1", "output", 100, 0.5, {2: 0.75, 16: 1.0}, 3, None)
SIMULATION = SimRun("conv1", "gemm", "tiny", {"ways": 4, "on": True, "rate": 1.0, "dram": "hbm"}, 10**12, {"hits": 7})
FAILED: dict[str, Any] = {"outcome": "failed", "reason": "out of memory", "timing": None}
SKIPPED: dict[str, Any] = {"outcome": "skipped", "reason": "no kernel for this layer", "timing": None}


@pytest.fixture
def run(store: Store, a_run: MakeRun) -> Run:
    """A run that the store has."""
    run = a_run()
    store.begin(run)
    return run


TRIAL = Trial("fc", "Linear(4, 4)", "circulant[block_size=2]", Settings("fp32", "nchw", "eager"))
WHOLES = tuple(Measured(name, TRIAL.settings, None) for name in ("before", "plan"))
STUDY = Study("mlp", "infer", "accuracy", 1.0, "synthetic", 4, WHOLES, (), (), None, "")


def test_a_run_comes_back_as_it_was(store: Store, a_run: MakeRun) -> None:
    run = a_run(remarks=("clocks are not locked", "é ∆ 東"), config={"a": {"b": [1, 2.5, None, True, "x"]}})
    store.begin(run)
    assert store.run(run.id) == run
    assert store.runs() == (run,)


def test_a_run_is_begun_once(store: Store, run: Run) -> None:
    with pytest.raises(UsageError, match="already"):
        store.begin(replace(run, verb="train"))
    assert store.run(run.id) == run


def test_a_run_ends_with_its_remarks(store: Store, a_run: MakeRun) -> None:
    store.begin(a_run(remarks=("first",)))
    store.add_remark("20260102-abc", "meanwhile")
    store.finish("20260102-abc", "done", "2026-01-02T04:00:00Z", remarks=["second"])
    remarks = ("first", "meanwhile", "second")
    assert store.run("latest") == a_run(status="done", finished="2026-01-02T04:00:00Z", remarks=remarks)


@pytest.mark.parametrize("outcome", [{}, FAILED, SKIPPED, {"timing": Timing("cupti", "cold", 1.5, 1.25, 2.0, 9, 3)}])
def test_a_layer_run_comes_back_as_it_was(
    store: Store, run: Run, a_layer_run: MakeLayerRun, outcome: dict[str, Any]
) -> None:
    layer = a_layer_run(**outcome, rel_error=1.5e-7, peak_bytes=2**40, live_bytes=2**39, sm_mhz=1980, power_w=612.5)
    store.add(run.id, layer)
    assert store.layers(run.id) == (layer,)


def test_layers_come_in_the_networks_order_then_as_added(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    names = [("b", 1, "forward"), ("c", 2, "forward"), ("a", 0, "forward"), ("b", 1, "backward_data")]
    for layer, place, phase in names:
        store.add(run.id, a_layer_run(layer, place=place, phase=phase))
    order = [(row.layer, row.phase) for row in store.layers(run.id)]
    assert order == [("a", "forward"), ("b", "forward"), ("b", "backward_data"), ("c", "forward")]


def test_one_layer_may_have_several_shapes_and_sizes(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    layers = (
        a_layer_run(batch=1, inputs=((1, 8),), output=(1, 4)),
        a_layer_run(batch=2, inputs=((2, 8),), output=(2, 4)),
        a_layer_run(batch=2, inputs=((2, 8),), output=(2, 4), impl="circulant[block_size=4]", parameters=8),
    )
    for layer in layers:
        store.add(run.id, layer)
    assert store.layers(run.id) == layers


def test_a_time_is_written_once(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    warm, cold = (a_layer_run(timing=Timing("events", l2, 5.0, 4.0, 6.0, 9)) for l2 in ("warm", "cold"))
    store.add(run.id, warm)
    store.add(run.id, cold)
    with pytest.raises(StoreError, match=r"conv1 forward dense fp32 nchw 32, clock events, L2 warm already"):
        store.add(run.id, replace(warm, timing=Timing("events", "warm", 1.0, 1.0, 1.0, 1)))
    assert store.layers(run.id) == (warm, cold)


def test_measured_is_what_need_not_be_measured_again(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    ok, failed, skipped = a_layer_run("a"), a_layer_run("b", **FAILED), a_layer_run("c", **SKIPPED)
    for layer in (ok, failed, skipped):
        store.add(run.id, layer)
    assert store.measured(run.id) == {(*ok.key, "cpu", "-"), (*skipped.key, "", "")}


def test_resuming_drops_failures_alone(store: Store, run: Run, a_run: MakeRun, a_layer_run: MakeLayerRun) -> None:
    other = a_run("other")
    store.begin(other)
    ok, failed, skipped = a_layer_run("a"), a_layer_run("b", **FAILED), a_layer_run("c", **SKIPPED)
    for layer in (ok, failed, skipped):
        store.add(run.id, layer)
        store.add(other.id, layer)
    store.finish(run.id, "interrupted", "2026-01-02T04:00:00Z")
    store.resume(run.id)
    assert store.run(run.id) == run
    assert store.layers(run.id) == (ok, skipped)
    assert store.layers(other.id) == (ok, failed, skipped)


def test_unfinished_is_the_latest_of_the_same_work(store: Store, a_run: MakeRun) -> None:
    for day, fingerprint, status in [
        (1, "work", "interrupted"), (2, "work", "running"), (3, "other", "running"), (4, "work", "done"),
    ]:  # fmt: skip
        store.begin(a_run(f"r{day}", started=f"2026-01-0{day}", fingerprint=fingerprint, status=status))
    found = store.unfinished("work")
    assert found
    assert found.id == "r2"
    assert store.unfinished("unknown work") is None


def test_epochs_come_in_order_and_the_last_word_counts(store: Store, run: Run) -> None:
    again = replace(EPOCH, train_loss=1.0)
    for epoch in (replace(EPOCH, epoch=2), EPOCH, again):
        store.add_epoch(run.id, epoch)
    assert store.epochs(run.id) == (again, replace(EPOCH, epoch=2))


def test_an_epoch_beyond_64_bits_is_refused_alone_and_in_a_document(store: Store, run: Run) -> None:
    with pytest.raises(ValueError, match="epoch cannot be stored: it does not fit 64 bits"):
        store.add_epoch(run.id, replace(EPOCH, epoch=2**63))
    store.add_epoch(run.id, EPOCH)
    document = store.export_run(run.id)
    document["epochs"][0]["epoch"] = 2**63
    store.delete(run.id)
    with pytest.raises(UsageError, match="does not fit 64 bits"):
        store.import_run(document)
    assert store.runs() == ()


def test_roofs_come_back_as_they_were(store: Store, run: Run) -> None:
    assert store.roofs(run.id) == ()
    store.add_roofs(run.id, ROOFS)
    store.add_roofs(run.id, replace(ROOFS, copy_gbs=11.0))
    assert store.roofs(run.id) == (ROOFS, replace(ROOFS, copy_gbs=11.0))


def test_a_configuration_has_one_coverage_its_last(store: Store, run: Run) -> None:
    again, other = replace(COVERAGE, strays={}), replace(COVERAGE, batch=1)
    for coverage in (COVERAGE, other, again):
        store.add_coverage(run.id, coverage)
    assert store.coverages(run.id) == (other, again)


def test_what_ifs_come_back_as_they_were_and_once(store: Store, run: Run) -> None:
    after = Timing("cupti", "cold", 5.0, 4.0, 6.0, 30, 2)
    executed = replace(WHAT_IF, detail="by triton", after=after, rel_error=1e-3, reason="", predicted_us=None)
    store.add_what_if(run.id, executed)
    store.add_what_if(run.id, WHAT_IF)
    assert store.what_ifs(run.id) == (executed, WHAT_IF)
    with pytest.raises(StoreError, match="the run has fusion of fc forward already"):
        store.add_what_if(run.id, replace(WHAT_IF, predicted_us=1.0))


def test_observations_come_back_as_they_were_all_or_none(store: Store, run: Run) -> None:
    store.add_sparsity(run.id, (replace(SPARSITY, iteration=number) for number in (5, 3)))
    store.add_sparsity(run.id, [])
    assert [one.iteration for one in store.sparsities(run.id)] == [5, 3]
    with pytest.raises(StoreError, match="one of these observations already"):
        store.add_sparsity(run.id, [SPARSITY, replace(SPARSITY, iteration=3)])
    store.add_sparsity(run.id, [SPARSITY])
    assert store.sparsities(run.id)[2] == SPARSITY


def test_a_simulation_is_done_once(store: Store, run: Run) -> None:
    asked = ("conv1", "gemm", "tiny")
    other = replace(SIMULATION, config={"ways": 8}, sampled=True, relative_error=0.01)
    for simulation in (SIMULATION, other):
        store.add_simulation(run.id, simulation)
    assert store.simulations(run.id) == (SIMULATION, other)
    assert store.simulation(run.id, *asked, dict(reversed(SIMULATION.config.items()))) == SIMULATION
    assert store.simulation(run.id, *asked, {"ways": 16}) is None
    assert store.simulation(run.id, "conv1", "gemm", "large", SIMULATION.config) is None
    with pytest.raises(StoreError, match="the run has gemm of conv1 on tiny with this configuration already"):
        store.add_simulation(run.id, replace(SIMULATION, cycles=1))


def test_deleting_takes_all_of_a_run_and_nothing_else(
    store: Store, run: Run, a_run: MakeRun, a_layer_run: MakeLayerRun
) -> None:
    kept = a_run("kept")
    store.begin(kept)
    for one in (run, kept):
        store.add(one.id, a_layer_run())
        store.add_epoch(one.id, EPOCH)
        store.add_roofs(one.id, ROOFS)
        store.add_kernels(one.id, [KernelRun(KEY, 0, "k", (1, 1, 1), (1, 1, 1), None, None, 1.0)])
        store.add_counters(one.id, [Counter(KEY, 0, "dram_bytes", 1.0, "byte")])
        store.add_coverage(one.id, COVERAGE)
        store.add_what_if(one.id, WHAT_IF)
        store.add_sparsity(one.id, [SPARSITY])
        store.add_simulation(one.id, SIMULATION)
        store.add_trial(one.id, TRIAL)
        store.add_study(one.id, STUDY)
    before = store.export_run(kept.id)

    def sizes() -> set[int]:
        return {store.query(f"SELECT count(*) FROM {table}")[1][0][0] for table in metadata.tables.keys() - {"metric"}}

    store.delete(run.id)
    assert store.runs() == (kept,)
    assert store.export_run(kept.id) == before
    assert sizes() == {1}
    store.delete(kept.id)
    assert sizes() == {0}


def test_everything_but_run_wants_the_full_id(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    uses: list[Callable[[str], object]] = [
        lambda part: store.add(part, a_layer_run()),
        lambda part: store.add_epoch(part, EPOCH),
        lambda part: store.add_roofs(part, ROOFS),
        lambda part: store.add_kernels(part, []),
        lambda part: store.add_counters(part, []),
        lambda part: store.add_coverage(part, COVERAGE),
        lambda part: store.add_what_if(part, WHAT_IF),
        lambda part: store.add_sparsity(part, []),
        lambda part: store.add_simulation(part, SIMULATION),
        lambda part: store.simulation(part, "conv1", "gemm", "tiny", {}),
        lambda part: store.finish(part, "done", "2026-01-02"),
        store.resume, store.delete, store.layers, store.measured, store.epochs, store.roofs, store.kernels,
        store.counters, store.coverages, store.what_ifs, store.sparsities, store.simulations, store.export_run,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(UsageError, match="run '20260102' is not in this database"):
            use("20260102")
    assert store.runs() == (run,)


def test_what_was_added_is_there_for_the_next_process(
    shared_address: str, a_run: MakeRun, a_layer_run: MakeLayerRun
) -> None:
    with open_store(shared_address) as store:
        store.begin(a_run())
        store.add("20260102-abc", a_layer_run())
        with open_store(shared_address) as other:  # while the first is still open
            assert other.layers("20260102-abc") == (a_layer_run(),)
    with open_store(shared_address) as store:
        assert store.run("latest") == a_run()


def test_runs_of_one_machine_share_its_environment(store: Store, a_run: MakeRun) -> None:
    software = {"device": "a chip", "torch": "2.13.0", "mig": None}
    runs = [
        a_run("a", environment={**software, "date": "2026-01-01"}),
        a_run("b", environment={**software, "date": "2026-01-02"}),
        a_run("c", environment={**software, "date": None, "driver": "595"}),
        a_run("d", environment={}),
    ]
    for run in runs:
        store.begin(run)
    assert [store.run(run.id).environment for run in runs] == [run.environment for run in runs]
    assert store.query("SELECT device, torch, driver FROM environment ORDER BY id")[1] == (
        ("a chip", "2.13.0", None), ("a chip", "2.13.0", "595"), (None, None, None),
    )  # fmt: skip


def test_an_open_store_costs_neither_torch_nor_alembic(store_path: str) -> None:
    open_store(store_path).close()
    code = (
        "import sys; from lamina.store import open_store; open_store(sys.argv[1]).close(); "
        "sys.exit(', '.join({'torch', 'alembic', 'pyarrow', 'psycopg'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code, store_path], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == ""
