"""Kernel launches and counters are tied to their layers, or refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lamina.errors import StoreError, UsageError
from lamina.record import Counter, KernelRun, LayerRun, Run
from lamina.store import Store

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]

LAUNCH = KernelRun("conv1", "forward", 0, "void gemm<float>(…)", (7, 2, 1), (128, 1, 1), 96, 49_152, 31.25)
SMALL = KernelRun("conv1", "forward", 1, "bias", (1, 1, 1), (32, 1, 1), None, None, 1.5)
READING = Counter("conv1", "forward", 0, "dram__bytes.sum", 1.5e9, "byte")


@pytest.fixture
def run(store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun) -> Run:
    """A run with two layers that the store has."""
    run = a_run()
    store.begin(run)
    store.add(run.id, a_layer_run("fc", place=1))
    store.add(run.id, a_layer_run("conv1", place=0))
    return run


def test_launches_and_counters_come_back_in_order(store: Store, run: Run) -> None:
    backward, second = replace(LAUNCH, phase="backward_data"), replace(LAUNCH, layer="fc")
    store.add_kernels(run.id, [second, SMALL])
    store.add_kernels(run.id, (launch for launch in (LAUNCH, backward)))
    assert store.kernels(run.id) == (backward, LAUNCH, SMALL, second)
    untold = replace(READING, metric="a", value=None, unit="")
    store.add_counters(run.id, [replace(READING, layer="fc"), READING, untold, replace(READING, invocation=1)])
    assert store.counters(run.id) == (
        untold, READING, replace(READING, invocation=1), replace(READING, layer="fc"),
    )  # fmt: skip


def test_a_launch_of_an_unknown_layer_is_refused_with_all_its_batch(store: Store, run: Run) -> None:
    with pytest.raises(UsageError, match=r"layer 'conv2' is not in run '20260102-abc': did you mean 'conv1'\?"):
        store.add_kernels(run.id, [LAUNCH, replace(LAUNCH, layer="conv2")])
    assert store.kernels(run.id) == ()


def test_a_launch_of_a_layer_with_several_shapes_is_not_guessed(
    store: Store, run: Run, a_layer_run: MakeLayerRun
) -> None:
    store.add(run.id, a_layer_run("conv1", place=0, batch=1, inputs=((1, 3, 224, 224),)))
    with pytest.raises(UsageError, match="layer 'conv1' has 2 shapes"):
        store.add_kernels(run.id, [LAUNCH])


def test_a_launch_is_written_once(store: Store, run: Run) -> None:
    store.add_kernels(run.id, [LAUNCH])
    with pytest.raises(StoreError, match="has one of these kernel launches already"):
        store.add_kernels(run.id, [SMALL, replace(LAUNCH, name="another")])
    assert store.kernels(run.id) == (LAUNCH,)


@pytest.mark.parametrize("stray", [{"invocation": 1}, {"phase": "backward_data"}, {"layer": "fc"}])
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
