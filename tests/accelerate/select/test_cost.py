"""Cost models: closed forms by hand, and signs against published times.

The published times are those of `benchmarks/never_slower.py`, in CUDA graphs. The peaks are those that another run
measured on the same kind of device. The constants of the models were fitted to times of an H200: the fractions of rows
of an H200 state how well a few constants describe them, those of an H100 how well they predict another device.
"""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

import lamina.recipes.recordings as recordings
from lamina.accelerate.convert import convert
from lamina.accelerate.methods.activation_sparsity import Sparse, functional
from lamina.accelerate.methods.circulant import cost as circulant
from lamina.accelerate.methods.elimination import cost as elimination
from lamina.accelerate.methods.fusion import Fusion
from lamina.accelerate.methods.fusion import cost as fusion
from lamina.accelerate.methods.fusion.convert import replace as fuse
from lamina.accelerate.methods.fusion.convert import runs
from lamina.accelerate.methods.weight_only import candidates as weight_only
from lamina.accelerate.registry import CELLS, configuration
from lamina.accelerate.select import DENSE, MIN_SPEEDUP, LayerCall, observe
from lamina.accelerate.select.cost import COMPUTE, MEMORY, PRODUCT_US, CostModel, Launch, Prediction, gemm, precision_of
from lamina.build.models import ZOO, create
from lamina.errors import UnsupportedError
from lamina.record.roofs import Roofs
from lamina.spec import Method

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
PEAKS = Roofs("x", "2026-01-01", 1, {"torch": "2"}, 1000.0, 1000.0, {"fp32": 1e4, "bf16": 1e5}, 4.0, 5.0)


RECORDED = {"h200": "alexnet_nvidia-h200", "h100": "dnnmark-alexnet-227_nvidia-h100-80gb-hbm3"}
"""By device, a recording with its peaks."""


@cache
def table(method: str, chip: str) -> dict[str, Any]:
    """The published results of a method on an ``h100`` or ``h200``."""
    (file,) = RESULTS.glob(f"never_slower_{method}_nvidia-{chip}*.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def peaks(chip: str) -> Roofs:
    """The peaks of a device as a recorded run measured them."""
    with lzma.open(recordings.path(RECORDED[chip])) as file:
        known = json.load(file)["roofs"][0]
    return Roofs(**{name: known[name] for name in Roofs.__dataclass_fields__})


@cache
def network(name: str, batch: int, width: int) -> tuple[nn.Module, dict[str, LayerCall]]:
    """A network without memory, and the call of each of its layers."""
    entry = ZOO[name]
    with torch.device("meta"):
        model = create(name, entry.classes, **({"width": width} if name == "lstm" else {}))
        x = torch.zeros(batch, *entry.input, dtype=torch.long if entry.kind == "tokens" else torch.float32)
    leaves = [path for path, module in model.named_modules() if not any(True for _ in module.children())]
    return model, observe(model, leaves, x)


@dataclass
class Published:
    """A row, with its layer, its call and the unit of layers that starts there."""

    times_us: dict[str, float]
    layer: nn.Module
    call: LayerCall
    model: nn.Module
    path: str


def published(method: str, chip: str) -> Iterator[Published]:
    """The layers of a method's results in graph mode, with PyTorch set to the row's precision."""
    for row in table(method, chip)["rows"]:
        if row["mode"] != "graph" or row["phase"] != "step":
            continue
        model, calls = network(row["workload"], row["batch"], 1024)
        call = calls[row["layer"]]
        if row["precision"] == "bf16":
            half = tuple(x.bfloat16() if isinstance(x, torch.Tensor) else x for x in call.leaves)
            call = replace(call, leaves=half, autocast=torch.bfloat16)
        if row["layout"] == "nhwc" and call.tensors[0].dim() == 4:
            call = replace(call, leaves=tuple(x.contiguous(memory_format=torch.channels_last) for x in call.leaves))
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32" if row["precision"] == "tf32" else "ieee"
        try:
            yield Published(row["times_us"], model.get_submodule(row["layer"]), call, model, row["layer"])
        finally:
            torch.backends.cuda.matmul.fp32_precision = before


def wins(times: dict[str, float]) -> bool:
    """Whether an implementation is faster than dense by the least speedup of a selection."""
    return times[DENSE] >= MIN_SPEEDUP * min(time for name, time in times.items() if name != DENSE)


def agreement(method: str, chip: str, training: bool, times_us: Any) -> tuple[int, int]:
    """In how many rows, of how many, a cost model and the published times select alike."""
    model, alike, rows = CostModel(peaks(chip), "graph", training), 0, 0
    for row in published(method, chip):
        try:
            predicted = times_us(row, model)
        except UnsupportedError:
            continue
        rows += 1
        alike += wins(row.times_us) == wins(predicted)
    return alike, rows


def _circulant(row: Published, model: CostModel) -> dict[str, float]:
    return circulant.times_us(row.layer, 64, row.call, model)


def _eliminated(row: Published, model: CostModel) -> dict[str, float]:
    times = elimination.times_us(row.layer, 0.5, row.call, model)
    ran = {name.split("impl=")[-1].split(",")[0].rstrip("]") for name in row.times_us}
    return {impl: time for impl, time in times.items() if impl in ran}


def _weight_only(row: Published, model: CostModel) -> dict[str, float]:
    return weight_only.times_us(row.layer, "e4m3", row.call, model)


def _fused(row: Published, model: CostModel) -> dict[str, float]:
    parent, _, first = row.path.rpartition(".")
    sequence = row.model.get_submodule(parent)
    if not isinstance(sequence, nn.Sequential):
        raise UnsupportedError(f"{row.path}: its unit is found by a trace")
    names = list(sequence._modules)
    (run,) = [run for run in runs(sequence, Fusion()) if names[run[0]] == first]
    unit = nn.Sequential(*(sequence[place] for place in run))
    return fusion.times_us(unit, fuse(unit, Fusion()), row.call, model)


@pytest.mark.parametrize(
    ("method", "chip", "training", "times_us", "rows", "least"),
    [
        ("circulant", "h200", True, _circulant, 153, 0.93),
        ("circulant", "h100", True, _circulant, 153, 0.77),
        ("eliminated", "h200", True, _eliminated, 48, 0.91),
        ("fused", "h200", False, _fused, 63, 0.90),
        ("fused", "h100", False, _fused, 63, 0.96),
        ("weight_only", "h200", False, _weight_only, 132, 0.93),
        ("weight_only", "h100", False, _weight_only, 168, 0.91),
    ],
)
def test_models_agree_with_published_times_in_sign(
    method: str, chip: str, training: bool, times_us: Any, rows: int, least: float
) -> None:
    alike, found = agreement(method, chip, training, times_us)
    assert found == rows  # all but LSTMs, which have no cost model, and fused units outside of a Sequential
    assert alike >= least * found


def always(replaced: bool, times_us: Any) -> Any:
    """A rule without a model, for the rows that a model of ``times_us`` has."""

    def rule(row: Published, model: CostModel) -> dict[str, float]:
        times_us(row, model)
        return {DENSE: 1.0, "other": 0.5 if replaced else 2.0}

    return rule


@pytest.mark.parametrize(("method", "times_us"), [("fused", _fused), ("weight_only", _weight_only)])
def test_on_an_h100_the_models_know_more_than_to_replace_all_or_none(method: str, times_us: Any) -> None:
    alike, _ = agreement(method, "h100", False, times_us)
    assert all(alike > agreement(method, "h100", False, always(replaced, times_us))[0] for replaced in (True, False))


def test_on_an_h100_the_circulant_model_keeps_dense_what_fused_rows_win() -> None:
    """It has none of them. Whoever gives it one changes this test, and the page of selections."""
    alike, rows = agreement("circulant", "h100", True, _circulant)
    assert alike < agreement("circulant", "h100", True, always(True, _circulant))[0]
    model, missed = CostModel(peaks("h100"), "graph", training=True), list[str]()
    for row in published("circulant", "h100"):
        if not isinstance(row.layer, nn.LSTM) and wins(row.times_us) > wins(_circulant(row, model)):
            missed.append(min(row.times_us, key=lambda name: row.times_us[name]))
    assert len(missed) == rows - alike  # it replaces nothing that is faster dense
    assert sum("impl=fused_rows" in name for name in missed) > len(missed) / 2


def test_dense_times_are_near_the_published_ones() -> None:
    model = CostModel(peaks("h200"), "graph", training=True)
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in published("circulant", "h200"):
        if not isinstance(row.layer, nn.LSTM):
            key = type(row.layer).__name__, precision_of(row.call)
            ratios.setdefault(key, []).append(model.dense_us(row.layer, row.call) / row.times_us[DENSE])
    assert len(ratios) == 6
    assert all(0.8 < median(found) < 1.4 for found in ratios.values())


X = torch.zeros(6, 8)


def called(*tensors: torch.Tensor, gradient: bool = True, autocast: torch.dtype | None = None) -> LayerCall:
    return LayerCall(tensors, None, (gradient,) * len(tensors), autocast)


def test_sizes_are_those_of_the_layer() -> None:
    linear = gemm(nn.Linear(8, 5), called(torch.zeros(2, 3, 8)))
    assert (linear.rows, linear.outputs, linear.summed, linear.x, linear.y) == (6, 5, 8, 48, 30)
    layer = nn.Conv2d(6, 4, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), groups=2)
    x = torch.zeros(2, 6, 9, 8)
    conv = gemm(layer, called(x, gradient=False))
    y = layer(x)
    assert (conv.rows, conv.outputs, conv.summed) == (y.numel() // 4, 4, 3 * 6)
    assert (conv.x, conv.y, conv.x_gradient) == (x.numel(), y.numel(), False)
    same = nn.Conv1d(2, 3, 4, padding="same")
    assert gemm(same, called(torch.zeros(5, 2, 7))).rows == 5 * 7
    with pytest.raises(UnsupportedError, match="no cost model for LSTM"):
        gemm(nn.LSTM(3, 4), called(torch.zeros(2, 2, 3)))


def test_a_step_is_its_products_and_autocast_s_conversions() -> None:
    layer = nn.Linear(8, 5)
    product = Launch((48 + 30 + 40) * 4, 2 * 6 * 5 * 8, fixed_us=PRODUCT_US)
    assert gemm(layer, called(X)).launches(training=False) == [product]
    assert gemm(layer, called(X)).launches(training=True) == [product] * 3
    assert gemm(layer, called(X, gradient=False)).launches(training=True) == [product] * 2
    half = gemm(layer, called(X, autocast=torch.bfloat16)).launches(training=True)
    assert half == [product._replace(bytes=(48 + 30 + 40) * 2)] * 3 + [Launch(40 * 6)] * 2


def test_a_time_is_the_roofline_or_the_launch_overhead() -> None:
    compute, memory = Launch(0.0, 1e9), Launch(1e9)
    eager, graph = (CostModel(PEAKS, mode, training=False) for mode in ("eager", "graph"))
    assert eager.time_us([compute], "fp32") == pytest.approx(1e9 / (COMPUTE * 1e4 * 1e3))
    assert eager.time_us([compute], "tf32") == eager.time_us([compute], "fp32")  # not measured: the lowest rate
    assert eager.time_us([compute], "bf16") == pytest.approx(1e9 / (COMPUTE * 1e5 * 1e3))
    assert eager.time_us([memory], "fp32") == pytest.approx(1e9 / (MEMORY * 1000.0 * 1e3))
    assert eager.time_us([Launch(0.0)] * 7, "fp32") == 7 * PEAKS.enqueue_us
    assert graph.time_us([Launch(0.0)] * 7, "fp32") < 7 * PEAKS.enqueue_us
    assert graph.time_us([Launch(0.0, fixed_us=3.0)], "fp32") == graph.time_us([Launch(0.0)], "fp32") + 3.0


@pytest.mark.parametrize(
    ("kernel", "impl", "words"),
    [
        (9.0, "kernel", "kernel 9 us, dense 10 us"),
        (9.9, DENSE, "kernel is less than 2% faster"),
        (11.0, DENSE, "dense 10 us, kernel 11 us"),
    ],
)
def test_dense_is_kept_unless_a_candidate_is_predicted_to_be_faster(kernel: float, impl: str, words: str) -> None:
    model = CostModel(PEAKS, "graph", training=True)
    candidates = {DENSE: Prediction(10.0, nn.Identity), "kernel": Prediction(kernel, nn.Identity)}
    found = model.select("circulant", candidates)
    assert found.impl == impl and found.predicted and found.mode == "graph"
    assert found.times_us == {DENSE: 10.0, "kernel": kernel}
    assert found.reason.startswith(f"{impl}: predicted by the cost model of circulant from peaks of x: ")
    assert words in found.reason


def test_sparse_layers_are_predicted_at_the_density_of_their_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "is_supported", lambda x: True)
    rates = {"fp32": 1e3, "fp16": 1e5}  # tensor cores in float16 alone, as in float32 layers
    model = CostModel(replace(PEAKS, gemm_gflops=rates), "graph", training=False)
    full = torch.rand(256, 512) + 0.1
    empty = full * (torch.arange(512) % 16 == 0)  # whole channels are zero
    found = {}
    for name, x in (("full", full), ("empty", empty)):
        _, record = convert(nn.Sequential(nn.Linear(512, 512)), Sparse(), example=x, selector=model)
        found[name] = record.layers[0].selection
    assert found["empty"] is not None and found["empty"].impl == "sparse[impl=auto,density=0.06]"
    assert found["full"] is not None and found["full"].times_us["sparse[impl=auto,density=1.00]"] > 0
    assert found["empty"].speedup > (found["full"].speedup or 1)


@pytest.mark.parametrize("method", ["circulant[block_size=8]", *sorted({*CELLS} - {"circulant"})])
def test_every_method_predicts_or_says_why_not(method: str) -> None:
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
    training = method not in ("fused", "weight-only", "on-chip-fission")
    config = configuration(Method.parse(method))
    _, record = convert(net, config, example=torch.randn(2, 8, 4, 4), selector=CostModel(PEAKS, "eager", training))
    for layer in record.layers:
        if layer.selection is not None:
            assert layer.selection.predicted and layer.selection.times_us[DENSE] > 0
        else:
            assert layer.refusal is not None
    reasons = " ".join(str(layer.refusal) for layer in record.skipped)
    if method in ("circulant[block_size=8]", "fused", "sparse", "on-chip-fission"):
        assert ("do not support" if method == "sparse" else "no cost model for impl=reference") in reasons
    else:
        assert any(layer.selection for layer in record.layers)
