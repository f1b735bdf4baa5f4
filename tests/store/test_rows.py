"""Any record comes back exactly, or is refused before anything is written."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.record import Counter, Coverage, Epoch, KernelRun, LayerRun, Roofs, Run, SimRun, Sparsity, Timing, WhatIf
from lamina.store import Store

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]

NEW = (f"run{number}" for number in count())
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
WHOLE = st.integers(-(2**63), 2**63 - 1)
REAL = st.floats(allow_nan=False)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SHAPE = st.lists(st.integers(0, 2**40), max_size=5).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | FINITE | st.text(st.characters(exclude_categories=["Cs"])),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXT, below, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(TEXT | st.sampled_from(["date", "device", "torch", "commit"]), JSON, max_size=4)
NONE = st.none()

TIMING = st.builds(Timing, TEXT, TEXT, REAL, REAL, REAL, WHOLE, NONE | WHOLE)
LAYER_RUN = st.builds(
    LayerRun,
    layer=TEXT, kind=TEXT, place=WHOLE, phase=TEXT, impl=TEXT, precision=TEXT, layout=TEXT, batch=WHOLE,
    device=TEXT, inputs=st.lists(SHAPE, max_size=3).map(tuple), output=SHAPE, parameters=WHOLE,
    flops=NONE | WHOLE, bytes=NONE | WHOLE, outcome=st.sampled_from(["ok", "failed", "skipped"]), reason=TEXT,
    timing=NONE | TIMING, rel_error=NONE | REAL, peak_bytes=NONE | WHOLE, live_bytes=NONE | WHOLE, sm_mhz=NONE | WHOLE,
    power_w=NONE | REAL, note=TEXT, uncounted=WHOLE, energy_j=NONE | REAL,
)  # fmt: skip
RUN = st.builds(
    Run,
    id=st.just(""), verb=TEXT, target=TEXT, command=TEXT, started=TEXT, fingerprint=TEXT, config=OBJECT,
    environment=OBJECT, status=st.sampled_from(["running", "done", "interrupted", "failed"]),
    finished=NONE | TEXT, remarks=st.lists(TEXT, max_size=3).map(tuple),
)  # fmt: skip
EPOCH = st.builds(Epoch, WHOLE, WHOLE, REAL, REAL, REAL, REAL, REAL, REAL)
ROOFS = st.builds(
    Roofs, TEXT, TEXT, WHOLE, st.dictionaries(TEXT, TEXT, max_size=2), REAL, REAL,
    st.dictionaries(TEXT, FINITE, max_size=2), REAL, REAL,
)  # fmt: skip
KEY = LayerRun(
    "conv1", "convolution", 0, "forward", "dense", "fp32", "nchw", 32, "cpu", (), (), 0, None, None, "ok"
).key
EXTENT = NONE | st.tuples(WHOLE, WHOLE, WHOLE)
KERNEL = st.builds(KernelRun, st.just(KEY), WHOLE, TEXT, EXTENT, EXTENT, NONE | WHOLE, NONE | WHOLE, REAL)
READING = st.tuples(TEXT, NONE | REAL, TEXT)
COVERAGE = st.builds(Coverage, TEXT, TEXT, TEXT, WHOLE, WHOLE, REAL, st.dictionaries(TEXT, FINITE, max_size=3))
WHAT_IF = st.builds(
    WhatIf, TEXT, TEXT, TEXT, TEXT, TEXT, WHOLE, TIMING, NONE | REAL, TEXT, NONE | TIMING, NONE | REAL, TEXT
)
SPARSITY = st.builds(
    Sparsity, TEXT, TEXT, WHOLE, REAL, st.dictionaries(WHOLE, FINITE, max_size=3), NONE | WHOLE, NONE | WHOLE
)
SETTINGS = st.dictionaries(TEXT, TEXT | WHOLE | FINITE | st.booleans(), max_size=3)
SIMULATION = st.builds(
    SimRun, TEXT, TEXT, TEXT, SETTINGS, WHOLE, st.dictionaries(TEXT, WHOLE | FINITE, max_size=3), st.booleans(),
    NONE | REAL,
)  # fmt: skip

# One database for all examples, each with a run of its own.
shared_store = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared_store
@given(layer=LAYER_RUN)
def test_any_layer_run_comes_back_exactly(store: Store, a_run: MakeRun, layer: LayerRun) -> None:
    run = a_run(next(NEW))
    store.begin(run)
    store.add(run.id, layer)
    assert store.layers(run.id) == (layer,)


@shared_store
@given(run=RUN)
def test_any_run_comes_back_exactly(store: Store, run: Run) -> None:
    run = replace(run, id=next(NEW))
    store.begin(run)
    assert store.run(run.id) == run


@shared_store
@given(epoch=EPOCH, roofs=ROOFS)
def test_any_epoch_and_roofs_come_back_exactly(store: Store, a_run: MakeRun, epoch: Epoch, roofs: Roofs) -> None:
    run = a_run(next(NEW))
    store.begin(run)
    store.add_epoch(run.id, epoch)
    store.add_roofs(run.id, roofs)
    assert (store.epochs(run.id), store.roofs(run.id)) == ((epoch,), (roofs,))


@shared_store
@given(launch=KERNEL, readings=st.lists(READING, max_size=4, unique_by=lambda reading: reading[0]))
def test_any_launch_comes_back_exactly_with_its_counters(
    store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun, launch: KernelRun, readings: list[Any]
) -> None:
    run = a_run(next(NEW))
    store.begin(run)
    store.add(run.id, a_layer_run())
    store.add_kernels(run.id, [launch])
    counters = [Counter(KEY, launch.invocation, *reading) for reading in readings]
    store.add_counters(run.id, counters)
    assert store.kernels(run.id) == (launch,)
    assert set(store.counters(run.id)) == set(counters)


@shared_store
@given(coverage=COVERAGE, what_if=WHAT_IF, sparsity=SPARSITY, simulation=SIMULATION)
def test_any_other_record_comes_back_exactly(
    store: Store, a_run: MakeRun, coverage: Coverage, what_if: WhatIf, sparsity: Sparsity, simulation: SimRun
) -> None:
    run = a_run(next(NEW))
    store.begin(run)
    store.add_coverage(run.id, coverage)
    store.add_what_if(run.id, what_if)
    store.add_sparsity(run.id, [sparsity])
    store.add_simulation(run.id, simulation)
    assert (store.coverages(run.id), store.what_ifs(run.id)) == ((coverage,), (what_if,))
    assert (store.sparsities(run.id), store.simulations(run.id)) == ((sparsity,), (simulation,))
    found = store.simulation(run.id, simulation.layer, simulation.kernel, simulation.device, simulation.config)
    assert found == simulation


@shared_store
@given(layers=st.lists(LAYER_RUN, max_size=6, unique_by=lambda layer: layer.key))
def test_order_is_by_place_then_arrival(store: Store, a_run: MakeRun, layers: list[LayerRun]) -> None:
    run = a_run(next(NEW))
    store.begin(run)
    for layer in layers:
        store.add(run.id, layer)
    assert list(store.layers(run.id)) == sorted(layers, key=lambda layer: layer.place)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rel_error": float("nan")}, "rel_error cannot be stored: NaN"),
        ({"power_w": float("nan")}, "power_w cannot be stored: NaN"),
        ({"timing": Timing("cpu", "-", float("nan"), 1.0, 1.0, 1)}, "median_us cannot be stored: NaN"),
        ({"reason": "a\0b"}, "reason cannot be stored: it contains a NUL"),
        ({"layer": "\ud800"}, "name cannot be stored: .*surrogates"),
        ({"flops": 2**63}, "flops cannot be stored: it does not fit 64 bits"),
        ({"parameters": -(2**63) - 1}, "parameters cannot be stored: it does not fit"),
        ({"inputs": ((float("nan"),),)}, "inputs cannot be stored: Out of range"),
    ],
)
def test_what_cannot_come_back_is_refused(
    store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun, changes: dict[str, Any], message: str
) -> None:
    store.begin(a_run())
    with pytest.raises(ValueError, match=message):
        store.add("20260102-abc", a_layer_run(**changes))
    assert store.layers("20260102-abc") == ()
    assert store.query("SELECT count(*) FROM layer")[1] == ((0,),)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"x": float("nan")}},
        {"config": {"x": float("inf")}},
        {"config": {"x": {1, 2}}},
        {"environment": {"x": "\ud800"}},
        {"environment": {"date": "\0"}},
        {"remarks": ("\ud800",)},
        {"command": "\0"},
    ],
)
def test_a_run_that_cannot_come_back_is_refused(store: Store, a_run: MakeRun, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        store.begin(a_run(**changes))
    assert store.runs() == ()
    assert store.query("SELECT count(*) FROM environment")[1] == ((0,),)


@pytest.mark.parametrize(
    ("command", "stored"),
    [
        ("lamina bench mlp --store postgresql://me:hunter2@host/runs", "postgresql://me:***@host/runs"),
        ("lamina bench mlp --store 'postgresql+psycopg://me:p%40ss:w@host:5432/runs'", "://me:***@host:5432/runs'"),
        ("lamina bench mlp --store postgresql://me@host/runs", "postgresql://me@host/runs"),
        ("lamina bench a:b --input x=float32:3@4", "a:b --input x=float32:3@4"),
    ],
)
def test_a_password_is_never_stored(store: Store, a_run: Callable[..., Run], command: str, stored: str) -> None:
    store.begin(a_run(command=command))
    found = store.run(a_run().id).command
    assert found.endswith(stored) and "hunter2" not in found and "p%40ss" not in found
