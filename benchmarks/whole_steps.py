"""Claim: a converted network trains at least as fast as the user's own, whole steps in the same mode.

A step is forward, loss, backward and fused SGD, as a user's loop runs them: in eager mode, under ``torch.compile``
(``compiled``, and ``reduce-overhead`` with its CUDA graphs), or by ``lamina.graphed_step`` (``graph``, and
``compiled-graph`` of the compiled network). Weight-only and fused networks are timed in inference: a step is a forward
pass. The dense network and the one converted with ``select="measure"`` are timed interleaved, by the wall clock, launch
overhead included. Where the user could write the layers in other layouts, dense is the fastest of them, and converted
the fastest of their conversions. A network that keeps all its layers is the dense one, and its speedup is 1. Memory is
what PyTorch reserves beyond what it had.

fp32 and tf32 run in float32; bf16 trains under autocast, and infers with bf16 weights. Images are channels-last except
in fp32. Converted networks have other weights, so their steps are not compared; ``benchmarks/never_slower.py`` checks
each layer against float64, and graphs are compared with eager mode when they are captured.

Launch overhead, by which steps in eager and compiled mode may be bound, is that of the host: other jobs on it raise it.
Each row tells how much it was: host time for a tiny operator.

With ``--processes``, each network and precision has a process of its own. They compile and convert side by side, and
time one at a time, while no other uses the device. Results are written whenever one has ended, and with one process
after each cell; processes that still run a while after the limit are ended, and leave their finished cells.

Run: python -m benchmarks.whole_steps [--networks mlp,alexnet] [--precisions bf16] [--modes eager,graph]
     [--methods circulant,eliminated] [--processes 8] [--limit 540]
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn

import lamina
from benchmarks import results
from benchmarks.ahead import autocast, compile_conversion
from benchmarks.never_slower import METHODS, PRECISIONS, Network
from benchmarks.processes import Rows, each_in_a_process
from benchmarks.whole_networks import ALL, LONGEST, SMOKE, Dense, dense_networks
from benchmarks.whole_summary import summary
from lamina import build, measure, run
from lamina.accelerate.select import compiled
from lamina.accelerate.select.step import plain_loss
from lamina.pipeline.convert import timer
from lamina.pipeline.study.ahead import AHEAD
from lamina.record import Conversion, Mode, Timing
from lamina.spec.plan import CAPTURED, COMPILED

FEW_CHANNELS = "dense:space_to_depth"
"""For first layers, which circulant weights cannot replace."""
STEPS: Mapping[str, tuple[Any, bool]] = {
    **METHODS,
    "space-to-depth": (FEW_CHANNELS, True),
    "circulant-space-to-depth": ([METHODS["circulant"][0], FEW_CHANNELS], True),
}
"""Methods and combinations of them, and whether each is timed in training."""
KERNELS = {"circulant-space-to-depth": "circulant"}
"""The method of a combination that has kernels of its own."""
LABELS = {
    "circulant": "circulant[block_size=64,signs=true]",
    "circulant-space-to-depth": "circulant[block_size=64,signs=true,with=space-to-depth]",
}
"""Methods with their options, where tables show them."""

ROUNDS = 9
LIMIT_S = 6.0
"""Of rounds; there are three at least. All of them fit, unless a step is long."""
SELECT_S = 1.0
"""Of rounds for each layer, and for the whole step, when layers are selected. All rounds of a whole step fit."""
QUICKEST: tuple[Mode, ...] = ("graph", "eager", "compiled-graph", "compiled", "reduce-overhead")
"""All modes: those that compile longest come last, where a time limit may leave them out."""
GRACE_S = 30.0
"""Of cells that run when the time limit is over; then they are ended."""
WARM_UP = 5
"""Steps before the timing: compilation, capture, the optimizer's state."""

Step = Callable[[], object]


@dataclass
class Side:
    """A network that is timed: dense, or converted from one that is."""

    dense: Dense
    model: nn.Module
    record: Conversion | None = None
    reserved: int | None = None


def loss(outputs: Any, _: Tensor) -> Tensor:
    """A scalar from any outputs."""
    return plain_loss(outputs)


def training_step(model: nn.Module, x: Tensor, precision: str, mode: str) -> Step:
    """A training step in a mode."""
    labels = x.new_zeros(len(x))  # as small as those of a classifier: a graph copies them with the inputs
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=x.is_cuda)
    if mode in CAPTURED:
        cast = torch.bfloat16 if precision == "bf16" else None
        graphed = lamina.graphed_step(_compiled_for(model, mode), loss, optimizer, autocast=cast)
        return lambda: graphed(x, labels)
    forward = _compiled_for(model, mode)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, x.device):
            value = loss(forward(x), labels)
        value.backward()
        optimizer.step()

    return step


def _compiled_for(model: nn.Module, mode: str) -> nn.Module:
    """The model, compiled if the mode needs it."""
    return compiled(model, mode) if mode in COMPILED else model


def inference_step(model: nn.Module, x: Tensor, mode: str) -> Step:
    """A forward pass in a mode."""
    forward = _compiled_for(model, mode)
    if mode in CAPTURED:
        forward = lamina.graphed(forward)

    def step() -> object:
        with torch.no_grad():
            return forward(x)

    return step


def measured(
    network: Network, precision: str, mode: str, device: torch.device, method: str = "circulant",
    cache: Path | None = None,
) -> Rows:  # fmt: skip
    """A row of the dense network and one of the converted network; and one of each other dense network."""
    config, training = STEPS[method]
    overhead = measure.launch_overhead_us(device)
    sides: dict[str, Side] = {}
    choices: list[tuple[str, str]] = []
    with run.precision_mode(precision):
        for dense in dense_networks(network, precision, device, training):
            with autocast(precision if training else "", device):
                model, record = lamina.convert(
                    build.copied(dense.model), config, example=dense.x, select="measure", limit_s=SELECT_S,
                    mode=cast(Mode, mode if device.type == "cuda" else "eager"), training=training, cache=cache,
                )  # fmt: skip
            sides[dense.impl] = Side(dense, dense.model, record)
            ours = f"{method} of {dense.impl}" if record.replaced else dense.impl
            choices.append((dense.impl, ours))
            if record.replaced:
                sides[ours] = Side(dense, model, record)
        steps: dict[str, Step] = {}
        for name, side in sides.items():
            with Reserved(device) as reserved:
                x = side.dense.x
                steps[name] = (
                    training_step(side.model, x, precision, mode) if training else inference_step(side.model, x, mode)
                )
                with measure.beside() if mode in COMPILED else nullcontext():
                    steps[name]()  # compiles
                for _ in range(WARM_UP - 1):
                    measure.pause()
                    steps[name]()
            # All that run in this mode share one pool: the first has reserved it.
            side.reserved = reserved.bytes if mode != "reduce-overhead" or len(steps) == 1 else None
        how: Mode = "reduce-overhead" if mode == "reduce-overhead" else "eager"  # both by the wall clock
        times = timed(timer(device, how, ROUNDS, LIMIT_S, twice=True)(steps))
    theirs = min((dense for dense, _ in choices), key=lambda name: times[name].median_us)
    mine = min((ours for _, ours in choices), key=lambda name: times[name].median_us)
    common = {
        "workload": network.name, "layer": network.name, "phase": "end_to_end", "precision": precision,
        "batch": network.batch, "mode": mode, "l2": "warm" if device.type == "cuda" else None,
        "timing": "wall" if device.type == "cuda" else "cpu", "method": method, "training": training,
        "launch_overhead_us": overhead,
        "rel_error": None, "unchecked": "a converted network has other weights; never_slower checks its layers",
    }  # fmt: skip

    def row(impl: str, name: str, **columns: Any) -> dict[str, Any]:
        side = sides[name]
        return common | {
            "impl": impl, "layout": side.dense.layout, "speedup": times[theirs].median_us / times[name].median_us,
            "reserved_bytes": side.reserved, **columns,
        } | results.quartiles(times[name])  # fmt: skip

    several = len(choices) > 1
    compared = ", ".join(f"{name}: {times[name].median_us:.0f} us" for name, _ in choices) if several else ""
    rows = [row("dense", theirs, executed_impl=theirs, selection_reason=compared)]
    rows.append(row(LABELS.get(method, method), mine, **converted_columns(sides[mine], several)))
    if several:
        rows += [row(name, name, executed_impl=name, selection_reason="") for name, _ in choices]
    return rows


def converted_columns(side: Side, several: bool) -> dict[str, Any]:
    """What ran in a converted network, and why; ``several`` dense networks were converted."""
    record = side.record
    assert record is not None
    able = [layer for layer in record.layers if layer.refusal is None or layer.selection is not None]
    replaced = record.replaced
    impls = Counter(layer.selection.impl for layer in replaced if layer.selection is not None)
    return {
        "executed_impl": f"{len(replaced)} of {len(able)} layers replaced" + f" in {side.dense.impl}" * several,
        "selection_reason": record.whole.reason if record.whole else "no layer is faster",
        "replaced": len(replaced), "replaceable": len(able), "impls": dict(impls),
    }  # fmt: skip


def timed(times: Mapping[str, Timing | Exception]) -> dict[str, Timing]:
    """The times of all.

    Raises:
        RuntimeError: one could not be timed.
    """
    found: dict[str, Timing] = {}
    for name, one in times.items():
        if isinstance(one, Exception):
            raise RuntimeError(f"{name}: {one}") from one
        found[name] = one
    return found


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


def prepare(network: Network, precision: str, method: str, device: torch.device) -> None:
    """Compile the candidates' kernels in threads, and then let cuDNN choose its algorithms while nothing else runs."""
    kernels = KERNELS.get(method, method)
    for dense in dense_networks(network, precision, device, STEPS[method][1]):
        if kernels in AHEAD and device.type == "cuda":
            config, training = STEPS[kernels]
            compile_conversion(dense.model, dense.x, config, precision, training, cast=training, device=device)
        with measure.alone(), run.precision_mode(precision):
            one_pass(dense, precision, STEPS[method][1])


def one_pass(dense: Dense, precision: str, training: bool) -> None:
    """A forward pass, and in training a backward pass."""
    with torch.set_grad_enabled(training), autocast(precision if training else "", dense.x.device):
        value = loss(dense.model(dense.x), dense.x)
    if training:
        value.backward()


def task(
    network: str, precision: str, modes: tuple[str, ...], methods: tuple[str, ...], device: str, until: float,
    cells: Path, after: Callable[[], object] = lambda: None,
) -> Rows:  # fmt: skip
    """The rows of a network in a precision, also written to a file of the folder ``cells`` after each cell.

    What fails prints a line; no cell is started after ``until``. ``after`` is called when a cell has ended.
    """
    known, on = {one.name: one for one in (*SMOKE, *ALL)}, measure.resolve(device)
    rows: Rows = []
    with TemporaryDirectory() as folder:
        for method in methods:
            for stage in ("prepare", *modes):
                here = f"{network} {precision} {method} {stage}"
                if time.time() >= until:
                    print(f"{here}: not started, the time limit is over", flush=True)
                    return rows
                watch = measure.Stopwatch()
                try:
                    if stage == "prepare":
                        prepare(known[network], precision, method, on)
                        continue
                    some = measured(known[network], precision, stage, on, method, Path(folder))
                except Exception as error:  # a compiler's, a library's or the network's own
                    print(f"{here} FAILED: {run.one_line(error)}", flush=True)
                    continue
                finally:
                    torch.compiler.reset()
                    gc.collect()
                    if on.type == "cuda":
                        torch.cuda.empty_cache()
                rows += some
                (cells / f"{network}_{precision}.json").write_text(json.dumps(rows), encoding="utf-8")
                for row in some:
                    print(
                        f"{here} {row['impl']} ({row['executed_impl']}): {row['median_us']:.1f} us, "
                        f"{row['speedup']:.3f}x, cell of {watch.seconds:.0f} s",
                        flush=True,
                    )
                after()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_steps", description=__doc__.split("\n")[0])
    known = [network.name for network in ALL]
    some = results.names_of(*known, *(network.name for network in SMOKE))
    parser.add_argument("--networks", type=some, default=",".join(known))
    parser.add_argument("--precisions", type=results.names_of(*PRECISIONS), default=",".join(PRECISIONS))
    parser.add_argument("--modes", type=results.names_of(*QUICKEST), default=",".join(QUICKEST))
    parser.add_argument("--methods", type=results.names_of(*STEPS), default="circulant", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--processes", type=int, default=1, help="networks at the same time; they take turns to time")
    parser.add_argument("--limit", type=float, default=inf, help="seconds after which no cell is started")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    asked = parser.parse_args()
    until = time.time() + asked.limit
    device = "cuda" if torch.cuda.is_available() else "cpu"
    command = results.command("whole_steps", asked, parser)
    named = ((getattr(asked, name), name) for name in ("networks", "precisions", "modes", "methods"))
    parts = [value for value, name in named if value != parser.get_default(name)]
    claim = "_".join(["whole_steps", *(word.replace("-", "_") for part in parts for word in part.split(","))])
    modes, methods = (tuple(part.split(",")) for part in (asked.modes, asked.methods))
    networks = sorted(asked.networks.split(","), key=lambda name: (*LONGEST, name).index(name))
    pairs = [(name, one) for one in asked.precisions.split(",") for name in networks]
    with TemporaryDirectory() as folder:
        cells, path = Path(folder), None
        tasks = [(*pair, modes, methods, device, until, cells) for pair in pairs]

        def write() -> None:
            nonlocal path
            if rows := finished(cells):
                path = results.write(claim, device, rows, summary(rows), asked, command)

        work = partial(task, after=write) if asked.processes == 1 else task
        for _ in chain(each_in_a_process(work, tasks, asked.processes, until, until + GRACE_S), [[]]):
            write()  # once more for the cells of those that were cut off
    if path is not None:
        print(path)


def finished(cells: Path) -> Rows:
    """The rows of all cells that were finished."""
    files = sorted(cells.glob("*.json"))
    return [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    main()
