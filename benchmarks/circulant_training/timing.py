"""Training steps with Adam, alone on a GPU: dense in both layouts beside circulant layers, and the memory of each.

All but the first and the last layer have blocks and random sign flips, each with its selected implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import results
from benchmarks.ahead import compile_conversion
from benchmarks.circulant_training.learning import built
from benchmarks.gpus import Rows
from lamina import measure, run
from lamina.accelerate import tune
from lamina.accelerate.methods.circulant import Circulant
from lamina.build.models import create
from lamina.pipeline.convert import selector

TIMED_BLOCK = 64
PRECISIONS = ("fp32", "tf32", "bf16")
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.3)
STEPS = (("alexnet", 128), ("vgg16", 64))


def adam_step(network: nn.Module, x: Tensor, y: Tensor, precision: str) -> Callable[[], object]:
    """Forward, loss, backward and Adam, whose state is on the device so that a graph can hold it."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, capturable=True, fused=True)
    wanted = {"bf16": torch.bfloat16}.get(precision)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, wanted, enabled=wanted is not None, cache_enabled=False):
            loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def compile_kernels(network: str, batch: int, precision: str, device: torch.device) -> None:
    """Compile the kernels of all candidates together, before `stepped` selects among them."""
    module: Any = create(network, 1000)
    module.to(device, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    blocks = Circulant(TIMED_BLOCK, rescale=True, signs=True)
    compile_conversion(module, x, blocks, precision, training=True, cast=True, device=device)


def stepped(asked: tuple[tuple[str, int], str]) -> Rows:
    """Rows of a network's training step in a precision, dense in both layouts and circulant."""
    (network, batch), precision = asked
    device = torch.device("cuda")
    graph, events = measure.GraphClock(device), measure.EventsClock(device)
    rows: Rows = []
    compile_kernels(network, batch, precision, device)
    for block_size, layout in ((1, "nchw"), (1, "nhwc"), (TIMED_BLOCK, "nhwc")):
        torch.manual_seed(0)
        form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        module: Any = built(network, 1000, block_size, "auto", signs=True)[0]
        module = module.to(device, memory_format=form)
        x = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=form)
        y = torch.randint(1000, (batch,), device=device)
        chosen: dict[str, str] = {}
        with run.precision_mode(precision), torch.cuda.stream(graph.stream):
            if block_size > 1:
                wanted = {"bf16": torch.bfloat16}.get(precision)
                with torch.autocast("cuda", wanted, enabled=wanted is not None, cache_enabled=False):
                    module, selections = tune(module, x, selector(device, "graph", training=True))
                    chosen = {name: selection.impl for name, selection in selections.items()}
            step = adam_step(module, x, y, precision)
            step()  # makes the optimizer's state, and lets the library choose its algorithms
            held = torch.cuda.memory_allocated(device)
            with measure.peak_memory(device) as peak:
                step()
            parameters = sum(p.numel() * p.itemsize for p in module.parameters())
            for clock in (graph, events):
                timing = clock.time(step, repeat=REPEAT)
                rows.append({
                    "workload": network, "layer": network, "phase": "step", "precision": precision,
                    "layout": layout,
                    "impl": "dense" if block_size == 1 else f"circulant[block_size={block_size},signs=true]",
                    "batch": batch, "timing": clock.name, "l2": "warm", **results.quartiles(timing),
                    "optimizer": "adam",
                    "peak_bytes": held + (peak.bytes or 0), "parameter_bytes": parameters,
                    "chosen": chosen, "by": "lamina",
                    "rel_error": None, "unchecked": "each layer is held to float64 by circulant_layers",
                })  # fmt: skip
                told = (rows[-1][key] for key in ("layer", "precision", "layout", "impl", "timing"))
                print(*told, round(timing.median_us, 1), rows[-1]["peak_bytes"], chosen, flush=True)
        del module, x, y, step
        torch.cuda.empty_cache()
    return rows


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of whole steps: dense in its better layout over circulant, by graph time, and the memory of both."""
    found = {}
    for name, precision in dict.fromkeys((row["workload"], row["precision"]) for row in rows):
        mine = [r for r in rows if (r["workload"], r["precision"], r["timing"]) == (name, precision, "graph")]
        dense = min((r for r in mine if r["impl"] == "dense"), key=lambda r: r["median_us"], default=None)
        ours = min((r for r in mine if r["impl"] != "dense"), key=lambda r: r["median_us"], default=None)
        if dense and ours:
            memory = f"{dense['peak_bytes'] / 2**20:.0f} -> {ours['peak_bytes'] / 2**20:.0f} MiB"
            found[f"{name} {precision}:"] = f"{dense['median_us'] / ours['median_us']:.2f}x, peak {memory}"
    return found
