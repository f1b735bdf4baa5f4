"""``bench --phase allreduce``: the time of exchanging each layer's gradients, as data-parallel training does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import nn

from lamina import accelerate, build, measure, run
from lamina.build import Target
from lamina.errors import LaminaError
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.targets import require_known
from lamina.pipeline.watch import Stage, Watch, unwatched
from lamina.record import LayerRun, Run
from lamina.spec import ITEM_BYTES, Method, Point, Workload
from lamina.spec.layer_names import matching_layers
from lamina.store import Store

PHASE = "allreduce"
BUCKET_BYTES = 25 << 20
"""Gradients of a whole network are exchanged in pieces of this size, as DistributedDataParallel does by default."""


@dataclass(frozen=True)
class Gradients:
    """The gradients of a layer.

    Attributes:
        name: of the layer.
        kind: its class.
        elements: that are exchanged.
        impl: what has them: ``dense`` where the method does not support the layer.
        reason: why not.
    """

    name: str
    kind: str
    elements: int
    impl: str
    reason: str = ""


def allreduce(
    target: Target,
    workload: Workload,
    store: Store,
    *,
    processes: int = 2,
    command: str = "",
    resume: bool = False,
    watch: Watch = unwatched,
) -> Run:
    """Measure the all-reduce of every layer's gradients, and of the network's, for each method and precision.

    Rows have the phase ``allreduce``; their bytes are those of the gradients.

    Args:
        target: the network.
        workload: methods, precisions, layers and device.
        store: where rows go.
        processes: one for each GPU with NCCL, or on the CPU with gloo.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of starting anew.
        watch: is called with what is planned and each row.

    Raises:
        UsageError: fewer than two processes, or a method is unknown.
        MissingError: there are fewer GPUs than processes.
        LaminaError: a process failed.
    """
    device = measure.resolve(workload.device)
    for method in workload.impl:
        require_known(method)
    environment = measure.environment(device)
    more = {"phase": PHASE, "processes": processes}
    this, done = begin("bench", target, workload, environment, store, command, resume, more)
    where = f"{environment.device}, {processes} processes by {'NCCL' if device.type == 'cuda' else 'gloo'}"
    with closing(store, this.id):
        for _, methods in groupby(workload.points(), lambda point: (point.batch, point.precision, point.layout)):
            missing = []  # of all methods: their exchanges are interleaved
            for point in methods:
                found = list(gradients(target, point.method, workload.layers))
                rows = list(_rows(target, found, point, where))
                clock = ("wall", "warm" if device.type == "cuda" else "-")
                missing += [(row, sizes) for row, sizes in rows if (*row.key, *clock) not in done]
            watch(Stage(f"{target.name}: exchange of gradients in {point.precision}", 0, len(missing)))
            times = measure.allreduce_times(
                [sizes for _, sizes in missing], build.DTYPES[point.precision], device, processes,
                workload.repeat or 15,
            ) if missing else []  # fmt: skip
            for (row, _), timing in zip(missing, times, strict=True):
                store.add(this.id, replace(row, timing=timing))
                watch(replace(row, timing=timing))
    return store.run(this.id)


def gradients(target: Target, method: Method, patterns: tuple[str, ...] = ()) -> Iterator[Gradients]:
    """The gradients of each layer with weights, by a method where it supports the layer.

    Raises:
        UsageError: a pattern fits no layer.
    """
    torch.manual_seed(0)
    network = target.make(None)
    inputs, *_ = target.example(1, None, "fp32", torch.device("cpu"), "nchw", 0)
    run.size_lazy_parameters(network, tuple(inputs))
    leaves = {name: module for name, module in network.named_modules() if _elements(module, recurse=False)}
    model, refusals = _converted(network, method)
    for name in matching_layers(patterns, list(leaves)):
        try:
            layer = model.get_submodule(name)
        except AttributeError:  # replaced together with another
            continue
        changed = type(layer) is not type(leaves[name])
        impl, reason = (str(method), "") if changed else ("dense", refusals.get(name, ""))
        yield Gradients(name, type(leaves[name]).__name__, _elements(layer, recurse=changed), impl, reason)


def _converted(network: nn.Module, method: Method) -> tuple[nn.Module, Mapping[str, str]]:
    """The network by a method, and why layers stay as they are."""
    if method.dense:
        return network, {}
    try:
        model, record = accelerate.convert(build.copied(network), accelerate.configuration(method))
    except LaminaError as error:
        return network, dict.fromkeys((name for name, _ in network.named_modules()), str(error))
    return model, {one.layer: str(one.refusal) for one in record.skipped}


def _elements(module: nn.Module, recurse: bool) -> int:
    """Elements of a module's gradients, with those of the modules in it or without."""
    return sum(one.numel() for one in module.parameters(recurse) if one.requires_grad)


def _rows(
    target: Target, found: list[Gradients], point: Point, device: str
) -> Iterator[tuple[LayerRun, list[int]]]:
    """Rows without a time, each with the tensors that are exchanged; the network's is the last."""
    itemsize = ITEM_BYTES[point.precision]
    changed = sum(one.impl != "dense" for one in found)
    for place, one in enumerate(found):
        yield _row(one.name, one.kind, place, point, target, device, one), [one.elements]
    total = sum(one.elements for one in found)
    bucket = BUCKET_BYTES // itemsize
    impl = f"{point.method} ({changed} of {len(found)} layers)" if changed else "dense"
    whole = Gradients(target.name, "network", total, impl)
    sizes = [bucket] * (total // bucket) + ([total % bucket] if total % bucket else [])
    yield _row(target.name, "network", len(found), point, target, device, whole), sizes


def _row(
    name: str, kind: str, place: int, point: Point, target: Target, device: str, of: Gradients
) -> LayerRun:
    return LayerRun(
        layer=name, kind=kind, place=place, phase=PHASE, impl=str(point.method), precision=point.precision,
        layout=point.layout, batch=point.batch or target.batch, device=device, inputs=((of.elements,),),
        output=(of.elements,), parameters=of.elements, flops=None, bytes=of.elements * ITEM_BYTES[point.precision],
        outcome="ok", executed_impl=of.impl, selection_reason=of.reason,
    )  # fmt: skip
