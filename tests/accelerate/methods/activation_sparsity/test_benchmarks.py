"""The benchmarks of this capability run where there is no GPU, and sum up what they saw rightly."""

import json
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import monitor_overhead, saved_activations, sparse_gemm, sparse_layers
from benchmarks.ladder import sparse_gemm as ladder_sparse_gemm
from benchmarks.ladder.single import ProductTile as Single
from lamina import run
from lamina.accelerate.methods.activation_sparsity import reference
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda
from lamina.accelerate.methods.activation_sparsity.ellpack.cuda import ProductTile
from lamina.simulate.workloads import RecordedMask, write_masks
from lamina.testing.cuda_on_cpu import KernelOnCpu

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")


@pytest.mark.parametrize(
    "benchmark", [sparse_gemm, sparse_layers, saved_activations, monitor_overhead, ladder_sparse_gemm]
)
def test_smoke_writes_results(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = benchmark.__name__.removeprefix("benchmarks.")
    monkeypatch.setattr(sys, "argv", [name, "smoke", "--output", str(tmp_path)])
    monkeypatch.setattr("benchmarks.source.commit", lambda: "0123abc")
    benchmark.main()
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text(encoding="utf-8"))
    assert path.name.startswith(f"{name.replace('.', '_')}_smoke_") and document["summary"]
    assert document["provenance"]["command"] == f"python -m benchmarks.{name} smoke"
    for row in document["rows"]:
        assert 0 < row["q1_us"] <= row["median_us"] <= row["q3_us"] and row["n"] >= 1
        # What is not held to float64 says why; ELLPACK-DIB rounds to float16.
        assert "unchecked" in row if row["rel_error"] is None else row["rel_error"] < 1e-3


def test_every_way_of_a_product_is_the_product() -> None:
    scope = sparse_gemm.SCOPES["smoke"]
    case = next(sparse_gemm.cases(sparse_gemm.Problem("small", 1, 3, 3, 2, 3), scope, "fp32", ("iid",)))
    exact = case.weight.double().permute(0, 2, 3, 1).flatten(1) @ reference.im2col(case.x.double(), case.problem.window)
    seen = []
    for part in sparse_gemm.parts(case, kernels=True):
        result = part.call()
        if part.result:
            error = run.relative_error([part.result(result)], [exact])
            assert error < (1e-2 if "weights" in part.impl else 1e-6), (part.impl, part.what)
        seen.append((part.impl, part.what, part.layout))
    assert len(set(seen)) == len(seen) == 25


def test_every_rung_of_the_ladder_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ProductTile(1, 4, 8, 2, 8, warp=4)
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "convert_tile", lambda rows: cuda.ConvertTile(8, 2, 8))
    monkeypatch.setattr(cuda, "product_tile", lambda outputs, columns, itemsize: small)
    monkeypatch.setattr(cuda, "amax", partial(cuda.amax, threads=8))
    monkeypatch.setattr(ladder_sparse_gemm, "Single", lambda **given: Single(1, 4, 8, 2, 8, warp=4))
    problem, scope = sparse_gemm.Problem("small", 2, 3, 6, 2, 3), sparse_gemm.SCOPES["smoke"]
    names = []
    for ladder, pattern in ladder_sparse_gemm.PATTERNS.items():
        case = next(sparse_gemm.cases(problem, scope, "fp32", (pattern,)))
        exact = torch.nn.functional.conv2d(case.x.double(), case.weight.double(), padding=1)
        for rung in ladder_sparse_gemm.rungs(case, ladder, kernels=True):
            result = rung.call()
            if rung.product:
                error = run.relative_error([result], [exact])
                assert error < (1e-2 if rung.name in ("halves", "tensor") else 1e-6), (ladder, rung.name)
            names.append((ladder, rung.name))
    assert len(set(names)) == len(names) == 17


def gemm_row(impl: str, what: str, zeros: float, us: float) -> dict[str, Any]:
    return {
        "workload": "claim", "precision": "fp32", "pattern": "iid", "zeros": zeros, "what": what, "impl": impl,
        "median_us": us,
    }  # fmt: skip


def test_break_even_is_where_all_further_zeros_pay() -> None:
    rows = [gemm_row("dense", "product", zeros, 100.0) for zeros in (0, 50, 70, 90)]
    rows += [gemm_row("nonzero", "product", z, us) for z, us in ((0, 400), (50, 90), (70, 120), (90, 40))]
    rows += [gemm_row("csr", "product", z, 500) for z in (0, 50, 70, 90)]
    rows += [gemm_row("dense", "product", zeros, 110.0) for zeros in (0, 50, 70, 90)]  # another layout, which is slower
    (found,) = sparse_gemm.break_even(sparse_gemm.best(rows)).items()
    assert found == (
        "zeros in % from which the product is faster: claim, fp32, iid", {"csr": "never", "nonzero": 90},
    )  # fmt: skip


def test_breakdown_is_over_dense_im2col_and_product() -> None:
    rows = [gemm_row("dense", "im2col", 90, 30.0), gemm_row("dense", "product", 90, 70.0)]
    rows += [gemm_row("csr", "convert, called", 90, 850.0), gemm_row("csr", "product", 90, 20.0)]
    assert sparse_gemm.breakdown(sparse_gemm.best(rows)) == {
        "parts over dense: claim, iid 90%": {"im2col": 0.3, "csr convert, called": 8.5, "csr product": 0.2}
    }


def test_speeds_name_the_slowest() -> None:
    times = {"a": {"dense": 10.0, "adaptive": 12.5}, "b": {"dense": 9.0, "adaptive": 3.0}}
    rows = [
        {"layer": layer, "phase": "forward", "precision": "fp32", "layout": "nchw", "impl": impl, "median_us": us}
        for layer, each in times.items()
        for impl, us in each.items()
    ]
    rows = [row | {"again_us": row["median_us"] * (1.1 if row["layer"] == "a" else 1.0)} for row in rows]
    rows += [row | {"phase": "step"} for row in rows]
    found = sparse_layers.speeds(rows)
    assert found["least speed over dense, forward"] == {"a, fp32 nchw:": 0.8}
    assert found["greatest speed over dense, step"] == {"b, fp32 nchw:": 3.0}
    assert found["slower than 0.98 of dense"] == 2
    assert found["dense, slower than 0.98 of itself"] == 2 and found["least speed of dense over itself"] == 0.909


def test_recorded_masks_become_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_gemm, "MASKS", tmp_path)
    some = np.zeros((2, 32, 16, 16), np.bool_)
    some[0, :5] = True
    images = np.ones((2, 3, 32, 32), np.bool_)
    write_masks(tmp_path / "cifarnet.npz", [RecordedMask("features.0", 9, images), RecordedMask("features.4", 9, some)])
    (case,) = sparse_gemm.recorded(sparse_gemm.SCOPES["smoke"], "fp32")
    assert case.problem == sparse_gemm.Problem("cifarnet features.4", 64, 32, 16, 32, 5)
    assert torch.equal(case.x != 0, torch.from_numpy(some).repeat(32, 1, 1, 1)) and case.pattern == "recorded"


def test_saved_bytes_count_each_storage_once() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)), torch.randn(2, 8)
    # What the ReLU gave is saved by itself and by the layer after it; parameters and the input do not count.
    assert saved_activations.saved_bytes(model, lambda: model(x).sum(), x) == 4 * 2 * 16
    assert saved_activations.held_after(lambda: model(x).sum(), "cpu") == 4 * 2 * 16 + 4
