"""DeftNN's kernels on chip: fission alone, and with elimination in one kernel."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from lamina import run
from lamina.accelerate.papers.on_chip_fission import functional
from lamina.accelerate.papers.on_chip_fission.config import TILES, OnChip
from lamina.pipeline.reproduce.live import elimination
from lamina.pipeline.reproduce.live.elimination import KEEP, LAYERS
from lamina.pipeline.reproduce.live.timing import Timer
from lamina.pipeline.reproduce.measured.fission import FORMATS
from lamina.pipeline.reproduce.measured.judging import Rows, Scope

ALL: tuple[OnChip, ...] = ("float", *FORMATS)


@torch.no_grad()
def layers(scope: Scope, impl: Any = "kernel") -> Rows:
    """Figure 9: AlexNet's layers in every tile, packed or not, with all input channels and with half of them.

    Raises:
        CheckError: a result differs from the definition in float64.
        MissingError: there is no GPU.
    """
    timer, rows = Timer(scope), list[dict[str, Any]]()
    batch = 16 if scope.quick else 128
    for layer, keep in product(LAYERS, (1.0, KEEP)):
        torch.manual_seed(0)
        x = layer.input(batch).to(timer.device)
        index = kept_channels(layer.inputs, keep, timer.device)
        weight = layer.dense().get_parameter("weight").to(timer.device)
        weight = weight if index is None else weight[:, index].contiguous()
        compute: Any = partial(functional.linear, index=index)
        if layer.kernel:
            compute = partial(functional.conv2d, index=index, padding=(layer.kernel // 2,) * 2)
        for format in ALL:
            exact = compute(x.double(), weight.double(), format=format, impl="reference")
            for tile in TILES:
                call = partial(compute, x, weight, format=format, tile=tile, impl=impl)
                with run.precision_mode("fp32"):
                    run.judge(run.relative_error([call()], [exact]), "fp32")
                    rows.append(
                        {
                            "workload": "alexnet", "layer": f"alexnet {layer.name}", "phase": "forward",
                            "precision": "fp32", "layout": "nchw", "batch": batch, "tile": tile, "format": format,
                            "keep": keep, "impl": f"on-chip-fission[format={format},tile={tile},keep={keep:g}]",
                            **timer.columns(call),
                        }
                    )  # fmt: skip
    return rows


def kept_channels(inputs: int, keep: float, device: torch.device) -> Tensor | None:
    """Evenly spaced input channels, a fraction ``keep`` of them: their index, or None for all."""
    return None if keep == 1 else torch.arange(0, inputs, round(1 / keep), device=device)


def networks(scope: Scope) -> Rows:
    """Figures 9, 16 and 17: whole networks with elimination, and on a GPU AlexNet's layers with fission."""
    return [*elimination.networks(scope), *(() if scope.device == "cpu" else layers(scope))]
