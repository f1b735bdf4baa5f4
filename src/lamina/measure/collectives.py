"""All-reduce between processes: what data-parallel training adds to a step."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from lamina.errors import LaminaError, MissingError, UsageError
from lamina.measure.repeat import summarize
from lamina.record.timing import Timing

WARM_UP = 3
SAMPLE_S = 0.002
"""A sample repeats an exchange for this long: a barrier comes before each."""
WAIT = timedelta(seconds=120)
"""For a process that does not answer."""


def allreduce_times(
    exchanges: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device, processes: int, samples: int = 15
) -> list[Timing]:
    """Wall time of each exchange of gradients, in which all ranks wait for the slowest.

    Processes are started for it, one for each GPU with NCCL, or on the CPU with gloo. Every sum is checked. Samples of
    the exchanges are interleaved, since the latency of an all-reduce differs from one start of processes to another.

    Args:
        exchanges: elements of the tensors that are reduced one after another.
        dtype: of the tensors.
        device: ``cuda`` or ``cpu``.
        processes: ranks, at least 2.
        samples: of each exchange.

    Raises:
        UsageError: fewer than two processes or one sample.
        MissingError: there are fewer GPUs than processes.
        LaminaError: a process failed, or a sum is wrong.
    """
    if processes < 2 or samples < 1:
        raise UsageError(f"all-reduce: expected at least 2 processes and 1 sample, got {processes} and {samples}")
    if device.type == "cuda" and torch.cuda.device_count() < processes:
        raise MissingError(
            f"all-reduce between {processes} processes: expected as many GPUs, found {torch.cuda.device_count()}; "
            "lower --processes, or use --device cpu"
        )
    with TemporaryDirectory(prefix="lamina-") as folder:
        job = ([list(map(int, one)) for one in exchanges], dtype, device.type, processes, samples, folder)
        try:
            spawn(_rank, job, processes)
        except (ProcessRaisedException, ProcessExitedException) as error:
            text = (str(error).strip().splitlines() or [""])[-1]
            raise LaminaError(f"all-reduce between {processes} processes failed: {text}") from error
        drawn = json.loads((Path(folder) / "samples.json").read_text(encoding="utf-8"))
    return [summarize(one, "wall", "warm" if device.type == "cuda" else "-") for one in drawn]


def _rank(
    rank: int, exchanges: list[list[int]], dtype: torch.dtype, device: str, world: int, samples: int, folder: str
) -> None:
    """One process: all take the same samples, since all know the time of the slowest."""
    here = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(here)
    else:
        torch.set_num_threads(1)  # the ranks are as many as one may have cores
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=WAIT,
        device_id=here if device == "cuda" else None,  # else a barrier guesses the GPU, and warns
    )
    try:
        calls = [_calls(one, dtype, here, rank, world) for one in exchanges]
        drawn: list[list[float]] = [[] for _ in exchanges]
        for turn in range(samples):
            for place in range(len(exchanges))[:: -1 if turn % 2 else 1]:
                drawn[place].append(_sample_us(exchanges[place], calls[place], dtype, here))
    finally:
        dist.destroy_process_group()
    if rank == 0:
        (Path(folder) / "samples.json").write_text(json.dumps(drawn), encoding="utf-8")


def _calls(sizes: list[int], dtype: torch.dtype, here: torch.device, rank: int, world: int) -> int:
    """Check the sums of an exchange, and count the calls that take as long as a sample."""
    tensors = [torch.full((size,), rank + 1, dtype=dtype, device=here) for size in sizes]
    for one in tensors:
        dist.all_reduce(one)
    expected = world * (world + 1) / 2
    if not all(bool((one == expected).all()) for one in tensors):
        raise LaminaError(f"a sum over {world} processes is wrong: expected {expected:g} everywhere")
    for one in tensors:
        one.zero_()  # sums of sums would overflow
    for _ in range(WARM_UP):
        _seconds(tensors, 1, here)
    return max(1, ceil(SAMPLE_S / _seconds(tensors, 1, here)))


def _sample_us(sizes: list[int], calls: int, dtype: torch.dtype, here: torch.device) -> float:
    """Microseconds of one exchange. Its tensors are allocated anew: those of all exchanges may not fit."""
    tensors = [torch.zeros(size, dtype=dtype, device=here) for size in sizes]
    _seconds(tensors, 1, here)  # warms up
    return 1e6 * _seconds(tensors, calls, here) / calls


def _seconds(tensors: list[Tensor], calls: int, here: torch.device) -> float:
    """Seconds until the slowest rank has exchanged the tensors so many times."""
    dist.barrier()
    _synchronize(here)
    start = time.perf_counter()
    for _ in range(calls):
        for one in tensors:
            dist.all_reduce(one)
    _synchronize(here)
    seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=here)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def _synchronize(here: torch.device) -> None:
    if here.type == "cuda":
        torch.cuda.synchronize(here)
