"""``train``: trains a network on a dataset and stores every epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from lamina import accelerate, measure, run
from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.registry import as_method
from lamina.build import Target
from lamina.build.data import batches, steps
from lamina.errors import LaminaError, UsageError
from lamina.pipeline.apply import Applied, replaced_by
from lamina.pipeline.converted import Converted
from lamina.pipeline.deft.recipe_files import path_of
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.updates import compressing, refusal, updates_in
from lamina.pipeline.watch import Watch, unwatched
from lamina.record import Epoch
from lamina.spec import Method
from lamina.spec.plan import MODES, Plan, PlanMode
from lamina.spec.plan_file import plan_text, read_plan
from lamina.spec.training import Training
from lamina.spec.whole_method import COMPRESSED, DENSE, FOLD, compresses, without
from lamina.spec.workload import Layout
from lamina.store import Store


def train(
    target: Target,
    data: str,
    settings: Training,
    store: Store,
    *,
    impl: object = Method(),
    plan: Plan | str | os.PathLike[str] | None = None,
    mode: PlanMode | None = None,
    layout: Layout | None = None,
    device: str = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    parallel: run.Parallel = "ddp",
    command: str = "",
    watch: Watch = unwatched,
) -> nn.Module:
    """Train a network on a dataset and return it.

    Synthetic data are drawn for networks of any inputs; outputs that are no class scores are trained on a loss that
    the run's notes name, and ``watch`` is called with NaN as their accuracy. The number of classes is that of the
    dataset. ``checkpoint`` stores the state for ``resume``.

    In a process group (:func:`lamina.run.join_processes`), the batch is split over the ranks, and rank 0 records. The
    run's notes then hold the bytes and the time of each epoch's exchange of gradients, but for ``parallel="fsdp"``.

    ``impl`` converts the network before training: every layer that it supports. It is a method, its written form or its
    configuration. ``plan``, or the file of one, converts each layer by its method in a plan of `study`. The run's
    config names either, and its notes say which layers were replaced and why not the others.

    ``mode`` is that of the updates: ``eager``, ``compiled`` and ``reduce-overhead`` by ``torch.compile``, ``graph``,
    each update as one CUDA graph, or ``compiled-graph``, one of compiled code. ``layout="nhwc"`` trains in
    channels-last. Both are the plan's by default; a plan's mode that does not run here becomes eager mode, with a note.
    Evaluation is in eager mode.

    Raises:
        UsageError: an option is unknown, the dataset does not match the network, ``impl`` supports none of its layers,
            or the mode does not run here.
        LaminaError: a training step failed.
    """
    check_choice("parallel", parallel, get_args(run.Parallel))
    if mode is not None:
        check_choice("mode", mode, MODES)
    if layout is not None:
        check_choice("layout", layout, get_args(Layout))
    method = as_method(impl)
    if not isinstance(plan, Plan | None):
        plan = read_plan(path_of("plan", plan, "a Plan or a path"))
    if checkpoint is not None:
        checkpoint = path_of("checkpoint", checkpoint)
    rank, world = run.rank_and_world()
    if settings.batch % world:
        raise UsageError(f"expected a batch divisible by {world} processes, got {settings.batch}")
    if parallel == "fsdp" and (world < 2 or settings.precision == "fp16"):
        raise UsageError("fsdp: expected several processes, and fp32, tf32 or bf16: processes share no loss scale")
    local_batch = settings.batch // world
    resolved = measure.resolve(device)
    train_set, test_set = target.train_test(data)
    shape = target.inputs[0].shape
    torch.manual_seed(settings.seed)
    notes: list[str] = []
    network = target.in_float32(len(train_set.classes), notes.append)
    converted = None if method == Method() else convert(network, target, method, settings.seed)
    planned: Applied | None = None
    if plan is not None:
        network, planned = replaced_by(network, plan)
    if converted is not None:
        network = converted.module
    notes += filter(None, [run.precision_note(settings.precision, resolved)])
    layout = layout or (plan.run.layout if plan else "nchw")
    if layout == "nhwc":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    whole = plan.run.method if plan else DENSE
    if (theirs := without(whole, FOLD, COMPRESSED)) != DENSE:
        from lamina.pipeline.study.rivals import apply_rival  # imports this module

        network = apply_rival(theirs, network.to(resolved))
    if mode is None:
        mode = plan.run.mode if plan else "eager"
        if (reason := refusal(mode, resolved)) is not None:
            notes.append(f"the plan's mode is {mode}, but {reason}: updates run in eager mode")
            mode = "eager"
    updates = updates_in(mode, resolved, notes.append)
    if compresses(whole) and mode == "eager":
        updates = compressing(updates)
    elif compresses(whole):
        notes.append(f"activations are compressed in eager mode only, not in mode {mode}")

    def train_batches(epoch: int, start: int) -> Iterator[tuple[run.Inputs, Tensor]]:
        return batches(
            train_set,
            shape,
            local_batch,
            settings.seed,
            epoch,
            augment=settings.augment,
            cutout=settings.cutout,
            rank=rank,
            world_size=world,
            start=start,
        )

    tests = partial(batches, test_set, shape, 4 * local_batch, 0, 0, shuffle=False, rank=rank, world_size=world)
    has_scores = True

    def other_loss(note: str) -> None:
        nonlocal has_scores
        has_scores = False
        notes.append(note)

    exchange = measure.GradientExchange(resolved)
    total = measure.Stopwatch()
    progress = run.train(
        network,
        settings,
        train_batches,
        tests,
        steps(len(train_set), local_batch, world),
        resolved,
        checkpoint,
        resume=resume,
        objective=objective(data, len(train_set.classes), other_loss),
        gradient_hook=exchange.hook,
        parallel=parallel,
        seconds=lambda: total.seconds,
        updates=updates,
    )
    progress = explained(progress, target.name)
    if rank:
        for _ in progress:
            exchange.take()
        return network

    more = {"data": data} if converted is None else {"data": data, "impl": str(method)}
    if plan is not None:
        more["plan"] = plan_text(plan)
    more |= {
        key: value
        for key, value, usual in (("parallel", parallel, "ddp"), ("mode", mode, "eager"), ("layout", layout, "nchw"))
        if value != usual
    }
    this, _ = begin("train", target, settings, measure.environment(resolved), store, command, resume, more)
    stopwatch = measure.Stopwatch()
    with closing(store, this.id) as remarks:
        if converted is not None:
            remarks.append(f"{method}: {len(converted.layers)} of {converted.weighted} layers converted")
            watch(remarks[-1])
        if planned is not None:
            refused = "; ".join(f"{name}: {reason}" for name, reason in planned.refused.items())
            remarks.append(f"plan: {len(planned.replaced)} layers converted" + (f"; {refused}" if refused else ""))
            watch(remarks[-1])
        if checkpoint is not None and resume != checkpoint.exists():
            watch(_overlooked(checkpoint, resume))
        for state in progress:
            for note in notes:
                remarks.append(note)
                watch(note)
            notes.clear()
            watch(state if has_scores else replace(state, train_accuracy=nan))
            if state.test_loss is None or state.test_accuracy is None:
                continue
            epoch = Epoch(
                state.epoch,
                state.step,
                state.learning_rate,
                state.train_loss,
                state.train_accuracy,
                state.test_loss,
                state.test_accuracy,
                stopwatch.lap(),
            )
            store.add_epoch(this.id, epoch)
            watch(epoch if has_scores else replace(epoch, train_accuracy=nan, test_accuracy=nan))
            exchanged = exchange.take()
            if exchanged.steps:
                store.add_remark(this.id, f"epoch {state.epoch}: {exchanged}")
        if converted is not None:
            ran, reason = converted.executed()
            remarks.append(f"ran {ran}" + (f"; {reason}" if reason else ""))
    if resume and not store.epochs(this.id):  # the process that trained to the end was killed before it could say so
        store.delete(this.id)
        watch(f"{checkpoint} is trained to the end: nothing was left to do, and no run is stored")
        return network
    watch(f"run {this.id} is in {store.place}" + (f", the checkpoint is {checkpoint}" if checkpoint else ""))
    return network


def _overlooked(checkpoint: Path, resume: bool) -> str:
    """What a misspelt ``checkpoint``, or a forgotten ``resume``, would cost."""
    if resume:
        return f"no checkpoint at {checkpoint} yet: the training begins anew"
    return f"{checkpoint} exists: it is replaced, at the latest after the first epoch; --resume goes on from it"


def convert(network: nn.Module, target: Target, method: Method, seed: int) -> Converted:
    """The network with every layer that the method supports replaced.

    Raises:
        UsageError: there is none; with the reasons.
    """
    inputs, *_ = target.example(2, None, "fp32", torch.device("cpu"), "nchw", seed)
    weighted = sum(any(weight.dim() > 1 for weight in layer.parameters(recurse=False)) for layer in network.modules())
    # With an example: a layer whose weights the network uses itself, as in attention, has to stay.
    network, record = accelerate.convert(network, accelerate.configuration(method), example=tuple(inputs))
    refusals = {one.layer: str(one.refusal) for one in record.skipped if one.parameters_before}
    layers = {one.layer: network.get_submodule(one.layer) for one in record.replaced}
    found = Converted(network, method, layers, weighted, refusals)
    if not layers:
        reasons = "; ".join(dict.fromkeys(refusals.values())) or "it has no weights"
        raise UsageError(f"{method} supports no layer of {target.name}: {reasons}")
    return found


def explained(progress: Iterator[run.Progress], name: str) -> Iterator[run.Progress]:
    """Training progress; an error of the network itself names the network and the step."""
    try:
        yield from progress
    except LaminaError:
        raise
    except Exception as error:
        raise LaminaError(f"{name}: a training step failed: {run.one_line(error)}") from error


def objective(data: str, classes: int, note: Callable[[str], object]) -> run.Objective:
    """Cross-entropy of class scores. On synthetic data, whose labels mean nothing, outputs of any form can be trained.

    ``note`` is called with the loss of other outputs, once.

    Raises:
        UsageError: when it is called on outputs without class scores, and the data are real.
    """
    noted = False

    def any_output(outputs: Any, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        nonlocal noted
        if not noted:
            note("the network has no class scores: the loss is the mean square of its outputs; there is no accuracy")
        noted = True
        return run.mean_square(outputs, labels, smoothing)

    return run.classification(classes, any_output if data == "synthetic" else None)
