"""Traces recorded on an H200, one recorded here, and small ones by hand whose answer is known."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function

from lamina.errors import SpecError
from lamina.measure.recorded import Recording, from_torch_trace, load
from lamina.measure.recorded.chrome import read

DATA = Path(__file__).parent / "data"
ADDS = "CUDAFunctor_add"


def recording(content: bytes) -> Recording:
    return from_torch_trace(load(content, "t.json"), content, "t.json")


def imported(*events: dict, **header: object) -> Recording:
    return recording(json.dumps({"traceEvents": events, **header}).encode())


def span(category: str, name: str, start: float, end: float, tid: int = 1, **args: object) -> dict:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 9,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def launch(number: int, at: float, tid: int = 1) -> dict:
    return span("cuda_runtime", "cudaLaunchKernel", at, at + 0.5, tid, correlation=number)


def kernel(number: int, us: float = 2.0, name: str = "k", start: float = 500.0, **args: object) -> dict:
    shape = {"grid": [2, 1, 1], "block": [32, 1, 1], "registers per thread": 8, "shared memory": 64} | args
    return span("kernel", name, start, start + us, 7, correlation=number, device=0, **shape)


def op(name: str, start: float, end: float, number: int, backward: bool = False, tid: int = 1) -> dict:
    return span("cpu_op", name, start, end, tid, **{"Sequence number": number, "Fwd thread id": int(backward)})


def homes(found: Recording) -> dict[str, tuple[str, str]]:
    return {one.name: (one.key.layer, one.key.phase) for one in found.kernels}


@pytest.mark.parametrize(
    ("file", "layers"),
    [("ranges_h200.json", ["conv", "act", "fc"]), ("modules_h200.json.gz", ["Conv2d_0", "ReLU_0", "Linear_0"])],
)
def test_a_training_step_on_an_h200(file, layers):
    content = (DATA / file).read_bytes()
    found = recording(gzip.decompress(content) if file.endswith("gz") else content)
    rows = {(row.layer, row.phase): row for row in found.rows}
    expected = [(layer, phase) for layer in layers for phase in ("forward", "backward_data")]
    assert set(rows) == {*expected, ("aten::sum", "forward"), ("aten::ones_like", "forward")}
    assert [rows[at].timing.kernels for at in expected] == [2, 6, 1, 1, 1, 5]
    assert [rows[layer, "forward"].kind for layer in layers] == ["convolution", "activation", "linear"]
    (memset,) = (one for one in found.kernels if one.grid is None)
    assert (memset.name, memset.key.layer) == ("Memset (Device)", layers[0])
    assert all(ADDS in name for name in found.coverage.strays), "only accumulated gradients are unattributed"
    assert found.coverage.kernels == len(found.kernels) == 18
    assert found.coverage.share == pytest.approx(0.967, abs=0.003)
    assert found.run.environment["device"] == "NVIDIA H200"
    assert (found.run.environment["cuda"], found.run.environment["sm_count"]) == ("13.0", 132)
    assert found.run.environment["torch"] is None
    assert found.run.started == "2026-11-21T03:45:10+00:00"


def test_traces_of_the_installed_torch_are_read(tmp_path):
    layer = torch.nn.Linear(3, 2)
    with profile(activities=[ProfilerActivity.CPU], with_modules=True, with_stack=True, acc_events=True) as profiler:
        with record_function("mine"):
            result = layer(torch.ones(1, 3))
        result.sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = read(load((tmp_path / "trace.json").read_bytes(), "trace.json"), "trace.json")
    assert {"mine", "Linear_0"} <= {one.name for one in events.spans if one.kind != "op"}
    made = {one.sequence for one in events.spans if one.name == "aten::addmm"}
    undone = {one.sequence for one in events.spans if one.backward and one.name.endswith("AddmmBackward0")}
    assert made == undone != {None}


def test_a_trace_of_the_cpu_has_no_kernels():
    with pytest.raises(SpecError, match="expected kernels, got none: profile with ProfilerActivity.CUDA"):
        imported(op("aten::add", 0, 1, 1))


def test_backward_on_another_thread_finds_the_forward_layer():
    found = imported(
        span("user_annotation", "stem", 0, 10),
        op("aten::conv2d", 1, 9, 5), op("aten::convolution", 2, 8, 5), launch(1, 3),
        op("autograd::engine::evaluate_function: ConvolutionBackward0", 20, 30, 5, True, tid=2),
        op("aten::convolution_backward", 21, 29, -1, tid=2), launch(2, 22, tid=2),
        kernel(1, name="f"), kernel(2, name="b"),
    )  # fmt: skip
    assert homes(found) == {"f": ("stem", "forward"), "b": ("stem", "backward_data")}
    assert found.run.remarks == ("this trace does not separate data and weight gradients: both are in backward_data",)


def test_ambiguous_sequence_numbers_are_unattributed():
    found = imported(
        span("user_annotation", "a", 0, 9, 1), op("aten::x", 1, 8, 5, tid=1), launch(1, 2),
        span("user_annotation", "b", 0, 9, 2), op("aten::x", 1, 8, 5, tid=2),
        op("autograd::engine::evaluate_function: X", 20, 30, 5, True, tid=3), launch(2, 22, tid=3),
        kernel(1, name="f"), kernel(2, 6.0, name="b"),
    )  # fmt: skip
    assert homes(found) == {"f": ("a", "forward")}
    assert found.coverage.strays == {"b": 6.0}


def test_the_innermost_name_counts_and_steps_and_optimizers_do_not():
    found = imported(
        span("user_annotation", "ProfilerStep#3", 0, 100), span("python_function", "nn.Module: Net_0", 1, 50),
        span("python_function", "torch/nn/functional.py(1): f", 2, 40), span("user_annotation", "block/forward", 3, 30),
        launch(1, 4), launch(2, 35), launch(3, 60),
        op("aten::mul", 70, 80, 1), op("aten::add", 71, 79, 1), launch(4, 72),
        span("user_annotation", "Optimizer.step#SGD.step", 85, 95), op("aten::_foreach_add_", 86, 94, 1), launch(5, 87),
        *(kernel(number, name=f"k{number}", start=500.0 + number) for number in range(1, 7)),
    )  # fmt: skip
    assert homes(found) == {"k1": ("block", "forward"), "k2": ("Net_0", "forward"), "k4": ("aten::mul", "forward")}
    assert set(found.coverage.strays) == {"k3", "k5", "k6"}


def test_lamina_s_ranges_hold_for_every_thread():
    found = imported(
        span("user_annotation", "lamina:conv1/backward_weight", 0, 10), launch(1, 5, tid=2),
        span("user_annotation", "lamina:relu", 20, 30), launch(2, 25), launch(3, 40),
        kernel(1, name="w"), kernel(2, name="f"), kernel(3, name="x"), kernel(4, name="y"),
    )  # fmt: skip
    assert homes(found) == {"w": ("conv1", "backward_weight"), "f": ("relu", "forward")}
    assert found.coverage.strays == {"x": 2.0, "y": 2.0}


def test_lamina_s_ranges_may_not_overlap():
    with pytest.raises(SpecError, match="overlap"):
        imported(span("user_annotation", "lamina:a", 0, 10), span("user_annotation", "lamina:b", 5, 15), kernel(1))


def test_times_are_quartiles_over_the_steps_and_kernels_those_of_the_median():
    steps = [
        event
        for step, us in enumerate((9.0, 1.0, 4.0))
        for event in (
            span("user_annotation", f"ProfilerStep#{step}", 100 * step, 100 * step + 99),
            span("user_annotation", "fc", 100 * step + 1, 100 * step + 9),
            launch(step + 1, 100 * step + 2),
            kernel(step + 1, us, start=1000.0 + step),
        )
    ]
    found = imported(*steps)
    (row,) = found.rows
    assert (row.timing.q1_us, row.timing.median_us, row.timing.q3_us, row.timing.n) == (2.5, 4.0, 6.5, 3)
    assert [one.duration_us for one in found.kernels] == [4.0]


def test_a_launch_has_a_shape_and_a_copy_has_none():
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 600, "dur": 1, "args": {"correlation": 2}}
    found = imported(span("user_annotation", "a", 0, 9), launch(1, 1), launch(2, 2), kernel(1), copy)
    first, second = found.kernels
    assert (first.grid, first.block, first.registers, first.shared_bytes) == ((2, 1, 1), (32, 1, 1), 8, 64)
    assert (second.grid, second.registers, second.invocation) == (None, None, 1)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (kernel(1) | {"dur": -1}, "event 0 .kernel. is not in the format of torch.profiler: expected 'dur'"),
        (kernel(1) | {"ts": float("nan")}, "expected 'ts' in microseconds, got nan"),
        (kernel(1) | {"ts": "soon"}, "got 'soon'"),
        (kernel(1) | {"args": {}}, "missing 'correlation'"),
        (kernel(1) | {"args": None}, "event 0"),
        (kernel(1, grid=[1, 2]), "not enough values"),
        (kernel(1, grid=[1, 2, -3]), "expected three counts"),
        (kernel(1, **{"registers per thread": 1e400}), "expected a count, got inf"),
        ({"ph": "X", "cat": "cpu_op", "name": "x"}, "missing 'ts'"),
    ],
)
def test_a_wrong_event_is_named(event, words):
    with pytest.raises(SpecError, match=words):
        imported(event)


def test_kernels_without_launches_are_no_profile():
    with pytest.raises(SpecError, match="no kernel can be tied to a layer"):
        imported(kernel(1), kernel(2))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_every_kernel_is_counted_exactly_once(launches):
    events = [span("user_annotation", f"layer{i}", 10 * i, 10 * i + 5) for i in range(6)]
    for number, (layer, offset, known) in enumerate(launches, 1):
        events += [launch(number, 10 * layer + offset + 0.1)] if known else []
        events.append(kernel(number, 1.0 + number, name=f"k{number}", start=500.0 + number))
    inside = {f"k{n}": f"layer{at}" for n, (at, offset, known) in enumerate(launches, 1) if known and offset < 5}
    if not inside:
        with pytest.raises(SpecError):
            imported(*events)
        return
    found = imported(*events)
    assert {name: layer for name, (layer, _) in homes(found).items()} == inside
    assert set(found.coverage.strays) == {f"k{n}" for n in range(1, len(launches) + 1)} - set(inside)
    total = found.coverage.attributed_us + sum(found.coverage.strays.values())
    assert total == pytest.approx(sum(1.0 + n for n in range(1, len(launches) + 1)))
