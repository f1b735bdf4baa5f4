"""A convolution as im2col and a sparse product, part by part, by the library and by the nonzero format."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F

from lamina import run
from lamina.accelerate.methods.activation_sparsity import functional
from lamina.accelerate.methods.activation_sparsity.cost import PhaseImpls
from lamina.pipeline.reproduce.live.timing import Timer
from lamina.pipeline.reproduce.measured.judging import Rows, Scope
from lamina.pipeline.reproduce.measured.sparse_libraries import CONVERT


@torch.no_grad()
def parts(scope: Scope) -> Rows:
    """Figure 6.3: the second convolution of CifarNet with 64 channels, at several densities of zeros."""
    timer, rows = Timer(scope), list[dict[str, Any]]()
    batch = 4 if scope.quick else 128
    products = PhaseImpls("nonzero") if timer.device.type == "cuda" else PhaseImpls(*["reference"] * 3)  # type: ignore[arg-type]
    compressing: Any = "kernel" if timer.device.type == "cuda" else "reference"
    torch.manual_seed(0)
    weight = torch.randn(64, 64, 5, 5, device=timer.device)
    full = torch.rand(batch, 64, 16, 16, device=timer.device) + 0.1

    def row(impl: str, what: str, zeros: float, call: Any) -> None:
        rows.append(
            {
                "workload": "cifarnet conv2", "layer": f"cifarnet conv2 iid {zeros:g}% {what}", "phase": "forward",
                "precision": "fp32", "layout": "nchw", "impl": impl, "batch": batch, "pattern": "iid", "zeros": zeros,
                "what": what, **timer.columns(call),
            }
        )  # fmt: skip

    with run.precision_mode("fp32"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        for zeros in (50.0, 80.0, 90.0, 95.0, 98.0):
            x = torch.where(torch.rand_like(full) < zeros / 100, 0.0, full)
            columns = F.unfold(x, 5, padding=2).transpose(0, 1).flatten(1)
            flat, stored = weight.flatten(1), columns.mT.contiguous()
            csr = stored.to_sparse_csr()
            row("dense", "im2col", zeros, lambda x=x: F.unfold(x, 5, padding=2))
            row("dense", "product", zeros, lambda flat=flat, columns=columns: flat @ columns)
            row("dense", "convolution", zeros, lambda x=x: F.conv2d(x, weight, padding=2))
            row("csr", CONVERT, zeros, lambda stored=stored: stored.to_sparse_csr())
            row("csr", "product", zeros, lambda csr=csr, flat=flat: csr @ flat.mT)
            row(
                "nonzero", "convolution", zeros,
                lambda x=x: functional.conv2d(x, weight, None, (1, 1), (2, 2), (1, 1), impls=products),
            )  # fmt: skip
            row("nonzero", CONVERT, zeros, lambda columns=columns: functional.compress(columns, impl=compressing))
    return rows
