"""The layers of table 7.3, and what a phase of a rung that keeps spectra starts with."""

import shutil
from collections import Counter

import pytest
import torch
from torch import Tensor

from lamina.accelerate.papers.circulant_ladder import rungs
from lamina.errors import CheckError
from lamina.pipeline.reproduce.live import ladder as layers
from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.measured.judging import Scope, judge
from lamina.spec.published import entry
from lamina.testing.cuda_on_cpu import kernel_class

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "millions", "batch"), [("A", 33, 128), ("B", 1.2, 64), ("C", 1, 128)])
def test_layers_have_the_weights_printed(name: str, millions: float, batch: int) -> None:
    layer = layers.LAYERS[name]
    assert layer.inputs * layer.outputs == pytest.approx(millions * 1e6, rel=0.05)
    assert layer.batch == batch
    assert layer.rows == (64 * 14 * 14 if name == "B" else 128)


@pytest.mark.parametrize("k", layers.BLOCK_SIZES)
def test_a_layer_has_k_times_fewer_weights(k: int) -> None:
    tensors = layers.LAYERS["C"].tensors(k, CPU)
    assert {name: tuple(one.shape) for name, one in tensors.items()} == {
        "x": (128, 1024 // k, k), "w": (1024 // k, 1024 // k, k), "dy": (128, 1024 // k, k),
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    ("name", "forward", "backward_data", "backward_weight", "step"),
    [("no_reorder", 2, 2, 2, 6), ("reused_spectra", 2, 1, 0, 3), ("fusion", 2, 1, 0, 3)],
)
def test_a_phase_finds_what_the_phases_before_it_kept(
    name: str, forward: int, backward_data: int, backward_weight: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    rfft = torch.fft.rfft

    def counting(blocks: Tensor) -> Tensor:
        counted["rfft"] += 1
        found: Tensor = rfft(blocks)
        return found

    rung = next(rung for rung in rungs.RUNGS if rung.name == name)
    tensors = layers.Layer("small", 2, 2, 8, 4).tensors(4, CPU)
    calls = layers.rung_calls(rung, rungs.kernels(kernel_class(CPU)), tensors, 32)
    monkeypatch.setattr(torch.fft, "rfft", counting)
    for phase, ffts in zip(layers.STEPS, (forward, backward_data, backward_weight, step), strict=True):
        for _ in range(2):  # a second call starts where the first did
            counted.clear()
            calls[phase]()
            assert counted["rfft"] == ffts, phase


def test_whole_steps_are_checked_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SMALL", {"A": layers.Layer("A", 2, 2, 128, 64)})
    threads = torch.get_num_threads()
    rows = layers.steps(Scope("cpu"))
    assert torch.get_num_threads() == threads
    assert {(row["layer"], row["block_size"], row["impl"]) for row in rows} == {
        ("A", k, impl)
        for k in layers.BLOCK_SIZES
        for impl in ("dense", *(f"ladder[rung={rung},block_size={k}]" for rung in ("as_written", "fusion")))
    }
    for name, cases in (("circulant-table-7.4", 3), ("circulant-figure-7.5", 3)):
        judged = judge(entry(name), measurement("circulant-ladder"), rows)
        assert sum(row.measured is not None for row in judged) == cases


def test_a_result_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SMALL", {"A": layers.Layer("A", 2, 2, 128, 64)})
    monkeypatch.setattr(rungs.reference, "reorder", lambda blocks: blocks)  # type: ignore[attr-defined]
    with pytest.raises(CheckError, match="exceeds"):
        layers.steps(Scope("cpu"))
