"""Claim: a converted network trains at least as fast as the user's own, whole steps in the same mode.

A step is forward, loss, backward and fused SGD, as a user's loop runs them: in eager mode, under ``torch.compile``
(``compiled``, and ``reduce-overhead`` with its CUDA graphs), or by ``lamina.graphed_step`` (``graph``). The dense
network and the one converted with ``select="measure"`` take turns, by the wall clock, launch overhead included. A
network that keeps all its layers is the dense one, and its speedup is 1. Peak memory is what PyTorch reserves beyond
what it had.

fp32 and tf32 run in float32; bf16 runs under autocast. Images are channels-last except in fp32. Converted networks have
other weights, so their steps are not compared; ``benchmarks/never_slower.py`` checks each layer against float64, and
graphs are compared with eager mode when they are captured.

Run: python -m benchmarks.whole_steps [--networks mlp,alexnet] [--precisions bf16] [--modes eager,graph]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import lamina
from benchmarks import results
from benchmarks.never_slower import NETWORKS, Network, autocast
from lamina import measure, run
from lamina.build.models import ZOO
from lamina.pipeline.convert import timer
from lamina.record import Mode

MODES = ("eager", "compiled", "reduce-overhead", "graph")
SELECTED_IN: Mapping[str, Mode] = {
    "eager": "eager", "compiled": "compiled", "reduce-overhead": "graph", "graph": "graph",
}  # fmt: skip
"""The mode in which layers are selected."""

PRECISIONS = ("fp32", "tf32", "bf16")
CONFIG = lamina.Circulant(64, rescale=True, signs=True)
CIRCULANT = "circulant[block_size=64,signs=true]"
ROUNDS = 9
WARM_UP = 5
"""Steps before the timing: compilation, capture, the optimizer's state."""


class Mlp(Network):
    """Four linear layers between 1,024 and 4,096 features, with ReLU."""

    def build(self) -> nn.Module:
        layers: list[nn.Module] = []
        for i in range(4):
            layers += [nn.Linear(*((1024, 4096) if i % 2 == 0 else (4096, 1024))), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def example(self, device: torch.device) -> Tensor:
        return torch.randn(self.batch, 1024, device=device)


ALL: tuple[Network, ...] = (
    Mlp("mlp", 2048),
    *NETWORKS,
    Network("resnet18", 64),
    Network("tdnn", 128),
)


SMOKE = Network("lenet5", 4)


def loss(outputs: Any, _: Tensor) -> Tensor:
    """A scalar from any outputs."""
    parts = [y.float().square().mean() for y in tree_leaves(outputs) if isinstance(y, Tensor) and y.is_floating_point()]
    return torch.stack(parts).sum()


def step_of(model: nn.Module, x: Tensor, precision: str, mode: str) -> Callable[[], object]:
    """A training step in a mode."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=x.is_cuda)
    cast = torch.bfloat16 if precision == "bf16" else None
    if mode == "graph":
        graphed = lamina.graphed_step(model, loss, optimizer, autocast=cast)
        return lambda: graphed(x, x)
    forward: Callable[..., Any] = model
    if mode != "eager":
        forward = torch.compile(model, mode="reduce-overhead" if mode == "reduce-overhead" else "default")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, x.device):
            value = loss(forward(x), x)
        value.backward()
        optimizer.step()

    return step


def measured(network: Network, precision: str, mode: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row of the dense network, and one of the converted network."""
    torch.manual_seed(0)
    dense = network.build().to(device).train()
    x = network.example(device)
    images = network.name in ZOO and ZOO[network.name].kind == "image"
    layout = "nhwc" if images and precision != "fp32" else "nchw"
    if layout == "nhwc":
        dense = dense.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    steps: dict[str, Callable[[], object]] = {}
    memory: dict[str, int | None] = {}
    with run.precision_mode(precision):
        with autocast(precision, device):
            converted, record = lamina.convert(
                copy.deepcopy(dense), CONFIG, example=x, select="measure", mode=selected_in(mode, device), training=True
            )
        models = {"dense": dense, "circulant": converted} if record.replaced else {"dense": dense}
        for name, model in models.items():
            with Reserved(device) as reserved:
                steps[name] = step_of(model, x, precision, mode)
                for _ in range(WARM_UP):
                    steps[name]()
            memory[name] = reserved.bytes
        times = timer(device, "eager", ROUNDS)(steps)
    theirs: Any = times["dense"]
    for name in ("dense", "circulant"):
        taken = times.get(name, theirs)
        if isinstance(taken, Exception):
            raise RuntimeError(f"{name}: {taken}") from taken
        replaced = len(record.replaced) if name == "circulant" else 0
        yield {
            "workload": network.name, "layer": network.name, "phase": "end_to_end", "precision": precision,
            "layout": layout, "batch": network.batch, "mode": mode, "l2": "warm" if device.type == "cuda" else None,
            "timing": "wall" if device.type == "cuda" else "cpu",
            "impl": "dense" if name == "dense" else CIRCULANT, "executed_impl": f"{replaced} layers replaced",
            "selection_reason": record.whole.reason if record.whole else "no layer is faster",
            "speedup": theirs.median_us / taken.median_us, "reserved_bytes": memory.get(name, memory["dense"]),
            "rel_error": None, "unchecked": "a converted network has other weights; never_slower checks its layers",
        } | results.quartiles(taken)  # fmt: skip


def selected_in(mode: str, device: torch.device) -> Mode:
    return SELECTED_IN[mode] if device.type == "cuda" else "eager"


class Reserved:
    """Bytes that PyTorch reserves on the device in a block, beyond what it had."""

    def __init__(self, device: torch.device):
        self.device = device
        self.bytes: int | None = None

    def __enter__(self) -> Reserved:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_reserved(self.device)
        return self

    def __exit__(self, *error: object) -> None:
        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_reserved(self.device) - self._before


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Dense over circulant in the same mode, and best mode over best dense mode."""
    found: dict[str, Any] = {}
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if row["mode"] == mode and row["impl"] != "dense"]
        found[f"speedup, {mode}"] = {f"{r['workload']} {r['precision']}": round(r["speedup"], 3) for r in mine}
    best: dict[str, float] = {}
    for workload, precision in dict.fromkeys((row["workload"], row["precision"]) for row in rows):
        mine = [row for row in rows if (row["workload"], row["precision"]) == (workload, precision)]
        dense = min(row["median_us"] for row in mine if row["impl"] == "dense")
        ours = min(row["median_us"] for row in mine if row["impl"] != "dense")
        best[f"{workload} {precision}"] = round(dense / ours, 3)
    found["speedup, best mode over best dense mode"] = best
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_steps", description=__doc__.split("\n")[0])
    parser.add_argument("--networks", default=",".join(network.name for network in ALL))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    asked = parser.parse_args()
    device = measure.resolve("cuda" if torch.cuda.is_available() else "cpu")
    known = {network.name: network for network in (*ALL, SMOKE)}
    given = [f"--{name} {getattr(asked, name)}" for name in ("networks", "precisions", "modes")]
    defaults = [f"--{name} {parser.get_default(name)}" for name in ("networks", "precisions", "modes")]
    command = " ".join(["whole_steps", *(g for g, d in zip(given, defaults, strict=True) if g != d)])
    some_networks = "" if asked.networks == parser.get_default("networks") else asked.networks
    claim = "_".join(["whole_steps", *filter(None, some_networks.split(","))])
    rows: list[dict[str, Any]] = []
    path = None
    for network in asked.networks.split(","):
        for precision in asked.precisions.split(","):
            for mode in asked.modes.split(","):
                try:
                    some = list(measured(known[network], precision, mode, device))
                except (lamina.errors.LaminaError, RuntimeError) as error:
                    print(f"{network} {precision} {mode}: {type(error).__name__}: {error}", flush=True)
                    continue
                rows += some
                for row in some:
                    print(
                        f"{network} {precision} {mode} {row['impl']} ({row['executed_impl']}): "
                        f"{row['median_us']:.1f} us, {row['speedup']:.3f}x",
                        flush=True,
                    )
                torch._dynamo.reset()
                if rows:  # after each, so that an end before the last leaves what there is
                    path = results.write(claim, str(device), rows, summary(rows), asked, command)
    if path is not None:
        print(path)


if __name__ == "__main__":
    main()
