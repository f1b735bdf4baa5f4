"""Claim: on two GPUs, circulant layers at k = 64 exchange 20 times fewer bytes of gradients, and whole steps gain 1.5x.

Gradient bytes are counted. The exchange of layer A's weights (8192 x 4096) and whole steps of DistributedDataParallel
are timed, dense and circulant in turns, the slowest rank's time.

Run: python -m benchmarks.multi_gpu [--processes 2] [--networks alexnet,vgg16] [--smoke]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import lamina
from benchmarks import results
from lamina import build, measure, pipeline, run
from lamina.pipeline.allreduce import gradients
from lamina.record import Timing
from lamina.spec import ITEM_BYTES, Method

BLOCK_SIZE = 64
LAYER_A = (8192, 4096)
ROUNDS, STEPS = 7, 10
PRECISIONS = ("tf32", "bf16")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi_gpu")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--networks", default="alexnet,vgg16", help="between commas")
    parser.add_argument("--batch", type=int, default=128, help="samples of each process")
    parser.add_argument("--smoke", action="store_true", help="small sizes, which any machine runs")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    args = parser.parse_args()
    if args.smoke:
        args.networks, args.batch = "lenet5", 4
    rows: list[dict[str, Any]] = []
    rows += exchanged(device, args)
    for network in args.networks.split(","):
        rows += stepped(network, device, args)
        path = results.write("multi_gpu", device.type, rows, summarized(rows), args)  # after each: nothing is lost
    print(path)
    for what, shown in summarized(rows).items():
        print(f"{what}: {shown}")


def block_size(args: argparse.Namespace) -> int:
    return 8 if args.smoke else BLOCK_SIZE


def method(args: argparse.Namespace) -> Method:
    return Method.parse(f"circulant[block_size={block_size(args)}]")


def gradient_bytes(network: str, impl: Method) -> int:
    """Bytes of all gradients of a network, which are float32 under autocast too."""
    target, _ = pipeline.find(network)
    return ITEM_BYTES["fp32"] * sum(one.elements for one in gradients(target, impl))


def exchanged(device: torch.device, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The all-reduce of a linear layer's weights."""
    inputs, outputs = (512, 256) if args.smoke else LAYER_A
    sizes = [inputs * outputs, inputs * outputs // block_size(args)]
    for precision in ("fp32",) if args.smoke else ("fp32", "bf16"):
        times = measure.allreduce_times([[size] for size in sizes], build.DTYPES[precision], device, args.processes)
        for impl, size, time in zip((Method(), method(args)), sizes, times, strict=True):
            yield _timed("layer A", "allreduce", impl, precision, args.batch, time) | {
                "gradient_bytes": size * ITEM_BYTES[precision], "processes": args.processes,
            }  # fmt: skip


def stepped(network: str, device: torch.device, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Whole training steps: forward, backward with the exchange of gradients, and the optimizer."""
    precisions = PRECISIONS if device.type == "cuda" else ("fp32",)
    with TemporaryDirectory(prefix="lamina-") as folder:
        job = (network, precisions, args.batch, block_size(args), args.processes, device.type, folder)
        spawn(_rank, job, args.processes)
        drawn = json.loads((Path(folder) / "steps.json").read_text(encoding="utf-8"))
    for (impl, precision, replaced), samples in ((json.loads(key), one) for key, one in drawn.items()):
        which = Method() if impl == "dense" else method(args)
        time = measure.summarize(samples, "wall", "warm")
        yield _timed(network, "step", which, precision, args.batch, time) | {
            "layers_replaced": replaced, "gradient_bytes": gradient_bytes(network, which), "processes": args.processes,
        }  # fmt: skip


def _rank(
    rank: int, network: str, precisions: tuple[str, ...], batch: int, k: int, world: int, device: str, folder: str
) -> None:
    here = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(here)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        device_id=here if device == "cuda" else None,
    )
    steps: dict[tuple[str, str, int], Any] = {}
    target, _ = pipeline.find(network)
    for precision in precisions:
        for impl in ("dense", "circulant"):
            torch.manual_seed(0)
            model, replaced = target.make(None).to(here).train(), 0
            if impl == "circulant":
                model, record = lamina.convert(model, lamina.Circulant(k, rescale=True, signs=True))
                replaced = len(record.replaced)
            if device == "cuda":
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs, *_ = target.example(batch, None, "fp32", here, "nhwc" if device == "cuda" else "nchw", rank)
            steps[impl, precision, replaced] = _step(model, inputs[0], precision, here)
    samples: dict[str, list[float]] = {json.dumps(key): [] for key in steps}
    for index in range(ROUNDS + 1):
        for key, step in list(steps.items())[:: 1 if index % 2 else -1]:
            with run.precision_mode(key[1]) if device == "cuda" else nullcontext():
                seconds = _slowest(step, here)
            if index:  # the first warms up
                samples[json.dumps(key)].append(1e6 * seconds / STEPS)
    if rank == 0:
        (Path(folder) / "steps.json").write_text(json.dumps(samples), encoding="utf-8")
    del step  # as the last owner, DDP's reducer would join gloo's thread with the GIL, which that thread may wait for
    steps.clear()
    dist.destroy_process_group()


def _step(model: nn.Module, x: torch.Tensor, precision: str, here: torch.device) -> Any:
    parallel = DistributedDataParallel(model, device_ids=[here] if here.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, fused=here.type == "cuda")
    y = torch.arange(len(x), device=here) % 10
    cast = torch.autocast(here.type, torch.bfloat16) if precision == "bf16" else nullcontext()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with cast:
            loss = F.cross_entropy(parallel(x).float(), y)
        loss.backward()
        optimizer.step()

    return step


def _slowest(step: Any, here: torch.device) -> float:
    """Seconds of some steps on the slowest rank."""
    dist.barrier()
    watch = measure.Stopwatch()
    for _ in range(STEPS):
        step()
    done = torch.zeros(1, device=here)
    dist.all_reduce(done)
    float(done)  # waits
    seconds = torch.tensor([watch.seconds], dtype=torch.float64, device=here)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def summarized(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Dense over circulant: time and bytes of gradients of each exchange and step."""
    summary = {}
    for dense in (row for row in rows if row["impl"] == "dense"):
        same = ("workload", "layer", "precision")
        for one in (row for row in rows if row["impl"] != "dense" and all(row[key] == dense[key] for key in same)):
            faster, fewer = (f"{dense[key] / one[key]:.2f}x" for key in ("median_us", "gradient_bytes"))
            name = f"{dense['workload']}, {dense['layer']}, {dense['precision']}: dense over {one['impl']}"
            summary[name] = f"time {faster}, bytes of gradients {fewer}"
    return summary


def _timed(workload: str, layer: str, impl: Method, precision: str, batch: int, time: Timing) -> dict[str, Any]:
    return _row(workload, layer, impl, precision, batch, time.median_us, time.q1_us, time.q3_us, time.n)


def _row(
    workload: str, layer: str, impl: Method, precision: str, batch: int, median: float, q1: float, q3: float, n: int
) -> dict[str, Any]:
    return {
        "workload": workload, "layer": layer, "phase": "step" if layer == "step" else "end_to_end",
        "precision": precision, "layout": "nhwc", "impl": str(impl), "batch": batch, "timing": "wall", "l2": "warm",
        "median_us": median, "q1_us": q1, "q3_us": q3, "n": n, "rel_error": None,
        "unchecked": "sums are checked by the exchange; steps by tests",
    }  # fmt: skip


if __name__ == "__main__":
    main()
