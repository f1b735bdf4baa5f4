"""Kernel launches and counters are tied to their layers, or refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lamina.errors import StoreError, UsageError
from lamina.record import Counter, Coverage, KernelRun, Key, LayerRun, Run, Timing
from lamina.store import Store

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]

CONV1 = Key("conv1", "forward", "dense", "fp32", "nchw", 32)
FC = CONV1._replace(layer="fc")
BACKWARD = CONV1._replace(phase="backward_data")
LAUNCH = KernelRun(CONV1, 0, "void gemm<float>(…)", (7, 2, 1), (128, 1, 1), 96, 49_152, 31.25)
FILL = KernelRun(CONV1, 1, "Memset (Device)", None, None, None, None, 1.5)
READING = Counter(CONV1, 0, "dram__bytes.sum", 1.5e9, "byte")


@pytest.fixture
def run(store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun) -> Run:
    """A run with two layers that the store has."""
    run = a_run()
    store.begin(run)
    store.add(run.id, a_layer_run("fc", place=1))
    store.add(run.id, a_layer_run("conv1", place=0))
    store.add(run.id, a_layer_run("conv1", place=0, phase="backward_data"))
    return run


def test_launches_and_counters_come_back_in_order(store: Store, run: Run) -> None:
    backward, second = replace(LAUNCH, key=BACKWARD), replace(LAUNCH, key=FC)
    store.add_kernels(run.id, [second, FILL])
    store.add_kernels(run.id, (launch for launch in (LAUNCH, backward)))
    assert store.kernels(run.id) == (backward, LAUNCH, FILL, second)
    assert store.kernels(run.id, layer="fc") == (second,)
    untold = replace(READING, metric="a", value=None, unit="")
    other, late = replace(READING, key=FC), replace(READING, invocation=1)
    store.add_counters(run.id, [other, READING, untold, late])
    assert store.counters(run.id) == (untold, READING, late, other)
    assert store.counters(run.id, layer="conv1", metric=READING.metric) == (READING, late)


def test_configurations_of_a_layer_are_told_apart(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    ours = {"precision": "bf16", "impl": "circulant[block_size=4]", "layout": "nhwc", "batch": 1}
    store.add(run.id, a_layer_run("conv1", **ours, inputs=((1, 3, 224, 224),)))
    other = replace(LAUNCH, key=CONV1._replace(**ours), name="other")
    store.add_kernels(run.id, [LAUNCH, other])
    assert set(store.kernels(run.id)) == {LAUNCH, other}
    owners = "SELECT kernel.name, inputs FROM kernel JOIN layer ON layer.id = layer_id ORDER BY kernel.name"
    shapes = {name: str(inputs).replace(" ", "") for name, inputs in store.query(owners)[1]}
    assert shapes == {"other": "[[1,3,224,224]]", LAUNCH.name: "[[32,3,224,224]]"}


@pytest.mark.parametrize(
    "stray", [{"layer": "conv2"}, {"phase": "step"}, {"precision": "fp3"}, {"batch": 31}, {"layout": "nhwc"}]
)
def test_a_launch_of_an_unknown_row_is_refused_with_all_its_batch(
    store: Store, run: Run, stray: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"run '20260102-abc' has no row '.*'; did you mean 'conv1 .*fp32 nchw 32'\?"):
        store.add_kernels(run.id, [LAUNCH, replace(LAUNCH, key=CONV1._replace(**stray))])
    assert store.kernels(run.id) == ()


def test_a_launch_of_a_row_with_several_shapes_is_not_guessed(
    store: Store, run: Run, a_layer_run: MakeLayerRun
) -> None:
    store.add(run.id, a_layer_run("conv1", place=0, inputs=((32, 3, 32, 32),)))
    with pytest.raises(UsageError, match="conv1 forward dense fp32 nchw 32 has 2 shapes"):
        store.add_kernels(run.id, [LAUNCH])


def test_a_row_with_several_clocks_is_one(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    store.add(run.id, a_layer_run("conv1", timing=Timing("cupti", "warm", 1.0, 1.0, 1.0, 1)))
    store.add_kernels(run.id, [LAUNCH])
    assert store.kernels(run.id) == (LAUNCH,)


def test_resuming_forgets_the_kernels_of_what_failed(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    failed = a_layer_run("fc", place=1, phase="backward_data", outcome="failed", timing=None)
    store.add(run.id, failed)
    store.add_kernels(run.id, [LAUNCH, replace(LAUNCH, key=failed.key), replace(LAUNCH, key=FC)])
    store.resume(run.id)
    assert store.kernels(run.id) == (LAUNCH, replace(LAUNCH, key=FC))


def test_a_launch_is_written_once(store: Store, run: Run) -> None:
    store.add_kernels(run.id, [LAUNCH])
    with pytest.raises(StoreError, match="has one of these kernel launches already"):
        store.add_kernels(run.id, [FILL, replace(LAUNCH, name="another")])
    assert store.kernels(run.id) == (LAUNCH,)


@pytest.mark.parametrize("stray", [{"invocation": 1}, {"key": BACKWARD}, {"key": FC}])
def test_a_counter_without_its_launch_is_refused(store: Store, run: Run, stray: dict[str, Any]) -> None:
    store.add_kernels(run.id, [LAUNCH])
    with pytest.raises(UsageError, match="add its kernels first"):
        store.add_counters(run.id, [READING, replace(READING, **stray)])
    assert store.counters(run.id) == ()


def test_a_counter_is_written_once(store: Store, run: Run) -> None:
    store.add_kernels(run.id, [LAUNCH])
    store.add_counters(run.id, [READING])
    with pytest.raises(StoreError, match="has one of these counters already"):
        store.add_counters(run.id, [replace(READING, value=2.0)])
    assert store.counters(run.id) == (READING,)


def test_a_reading_that_is_no_number_is_refused(store: Store, run: Run) -> None:
    store.add_kernels(run.id, [LAUNCH])
    with pytest.raises(ValueError, match="value cannot be stored: NaN"):
        store.add_counters(run.id, [replace(READING, value=float("nan"))])


def test_a_counter_is_written_once_whatever_its_unit(store: Store, run: Run) -> None:
    store.add_kernels(run.id, [LAUNCH])
    store.add_counters(run.id, [READING])
    with pytest.raises(StoreError, match="dram__bytes.sum in another unit"):
        store.add_counters(run.id, [replace(READING, unit="Kbyte")])
    assert store.counters(run.id) == (READING,)


def test_a_failed_profile_leaves_nothing(store: Store, run: Run, a_layer_run: MakeLayerRun) -> None:
    new = a_layer_run("conv2", place=2)
    coverage = Coverage("dense", "fp32", "nchw", 32, 1, 31.25)
    with pytest.raises(UsageError, match="has no row"):
        store.add_profile(run.id, [new], [replace(LAUNCH, key=CONV1._replace(layer="conv3"))], coverage)
    assert new not in store.layers(run.id)
    launch = replace(LAUNCH, key=new.key)
    store.add_profile(run.id, [new], [launch], coverage)
    assert new in store.layers(run.id)
    assert (store.kernels(run.id), store.coverages(run.id)) == ((launch,), (coverage,))
