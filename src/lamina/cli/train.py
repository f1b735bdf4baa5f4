"""``lamina train``: train a network and keep its history."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.networks import networks, training
from lamina.errors import UsageError
from lamina.spec.plan import MODES, PlanMode
from lamina.spec.workload import Layout


@handled
def train(
    spec: options.OneSpecArgument,
    data: options.DataOption,
    impl: options.ImplOption = "",
    plan: options.PlanOption = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training data.")] = 15,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", min=1, help="Batch size of all processes together.")
    ] = 64,
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, adam, adamw.")] = "sgd",
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", "--lr", help="Default 0.05 for sgd, 0.001 for adam and adamw."),
    ] = None,
    momentum: Annotated[float, typer.Option("--momentum", help="Momentum of sgd.")] = 0.9,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="L2 penalty; decoupled with adamw.")] = 5e-4,
    schedule: Annotated[str, typer.Option("--schedule", help="Learning-rate schedule: cosine, constant.")] = "cosine",
    warmup_steps: Annotated[
        int, typer.Option("--warmup-steps", min=0, help="Steps of linear learning-rate warm-up.")
    ] = 100,
    label_smoothing: Annotated[
        float, typer.Option("--label-smoothing", help="Label smoothing of the loss, from 0 to 1.")
    ] = 0.0,
    clip_norm: Annotated[
        float | None,
        typer.Option("--clip-norm", help="Clip the norm of all gradients to this; recurrent networks need it."),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            "--precision", help="fp32, tf32; bf16 and fp16 by autocast.", show_default="fp32, or that of --plan"
        ),
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="Of the updates: eager; compiled, reduce-overhead (torch.compile); graph (one CUDA graph each); "
            "compiled-graph (one of compiled code).",
            show_default="eager, or that of --plan",
        ),
    ] = "",
    layout: Annotated[
        str,
        typer.Option("--layout", help="nchw, or nhwc (channels-last).", show_default="nchw, or that of --plan"),
    ] = "",
    augment: Annotated[bool, typer.Option("--augment", help="Random crops and horizontal flips.")] = False,
    cutout: Annotated[
        int, typer.Option(min=0, metavar="PIXELS", help="Side of a random square that images lose.")
    ] = 0,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    input_: options.InputOption = [],  # noqa: B006  (typer copies it)
    input_fn: options.InputFnOption = "",
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="File of the training state (safetensors), replaced atomically."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from --checkpoint where it exists.")] = False,
    parallel: Annotated[
        str,
        typer.Option(
            "--parallel", help="Under torchrun: ddp, or fsdp, with a part of the weights and states in each process."
        ),
    ] = "ddp",
    store: options.StoreOption = "",
) -> None:
    """Train a classifier, and store the loss and accuracy of each epoch.

    --data synthetic draws random samples of any inputs; a network without class scores trains the mean square of its
    outputs on them.

    With --impl, every layer that the implementation supports is replaced before training, with --plan each layer by
    its method in the plan, in the plan's precision, layout and mode; the stored run says which.

    A run that was killed and resumed ends with the same weights as one that was not. On several GPUs:

        torchrun --nproc-per-node 2 -m lamina train resnet18 --data DIR --device cuda

    Examples:

        lamina train lenet5 --data fashion-mnist --epochs 5 --checkpoint lenet5.safetensors

        lamina train lenet5 --data fashion-mnist --impl circulant\\[block_size=4]

        lamina train resnet18 --data DIR --device cuda --precision bf16 --layout nhwc --mode graph

        lamina train mypackage:Joined --data synthetic --input image=float32:3x32x32 --input tokens=int64:16
    """
    input_size = options.inputs(input_size, input_, input_fn)
    if resume and checkpoint is None:
        raise UsageError("--resume needs --checkpoint: the file to continue from")
    methods = options.implementations(impl)
    if len(methods) > 1 or any(method.algorithm for method in methods):
        raise UsageError(f"--impl: expected one method that replaces layers, such as circulant, got {impl}")
    found = options.whole_plan(plan)
    if methods and found is not None:
        raise UsageError("--impl and --plan: expected one of them")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    options.choices("--parallel", parallel, ("ddp", "fsdp"))
    if parallel == "fsdp" and not several:
        raise UsageError("--parallel fsdp: expected several processes; start them with torchrun, as --help shows")
    if parallel == "fsdp" and "fp16" in (precision, found.run.precision if found and not precision else ""):
        raise UsageError("--parallel fsdp: expected --precision fp32, tf32 or bf16, got fp16")
    if mode:
        options.choices("--mode", mode, MODES)
    if layout:
        options.choices("--layout", layout, ("nchw", "nhwc"))
    settings = training(
        optimizer,
        learning_rate,
        epochs=epochs,
        batch=batch_size,
        momentum=momentum,
        weight_decay=weight_decay,
        schedule=schedule,
        warmup_steps=warmup_steps,
        label_smoothing=label_smoothing,
        clip_norm=clip_norm,
        precision=precision or (found.run.precision if found else "fp32"),
        augment=augment,
        cutout=cutout,
        seed=seed,
    )
    options.dataset(data)
    options.writable("--checkpoint", checkpoint)
    options.device(device)
    ((target, _),) = networks([spec], set_, input_size)

    from lamina import pipeline, run
    from lamina.cli.watching import Watcher
    from lamina.store import open_store

    chosen = options.device_name(device)
    if several:
        import torch

        chosen = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if chosen == "cuda" else chosen
        run.join_processes(torch.device(chosen))
    try:
        with Watcher() as watch, open_store(options.store_url(store)) as database:
            pipeline.train(
                target,
                data,
                settings,
                database,
                **({"impl": methods[0]} if methods else {}),
                plan=found,
                mode=cast(PlanMode | None, mode or None),
                layout=cast(Layout | None, layout or None),
                device=chosen,
                checkpoint=checkpoint,
                resume=resume,
                parallel="fsdp" if parallel == "fsdp" else "ddp",
                command=options.command_line(),
                watch=watch,
            )
    finally:
        run.leave_processes()
