"""``lamina study``: from a network to a measured plan of how to run each of its layers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.isolated import isolated, surviving
from lamina.cli.networks import check_networks, networks, training
from lamina.errors import UsageError
from lamina.spec.plan import MODES

if TYPE_CHECKING:
    from lamina.pipeline.study import Studied

FORMATS = ("table", "json")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@handled
def study(
    spec: options.OneSpecArgument,
    data: options.DataOption = "synthetic",
    goal: Annotated[str, typer.Option("--goal", help="train (training steps) or infer (forward passes).")] = "infer",
    max_accuracy_drop: Annotated[
        float,
        typer.Option(
            "--max-accuracy-drop",
            min=0,
            max=100,
            help="Points of accuracy that may be lost; to infer, the loss plus one standard error. Without class "
            "scores or real data: the relative error of the outputs, in percent.",
        ),
    ] = 1.0,
    budget: Annotated[
        str, typer.Option("--budget", help="Time for everything, such as 90s, 10m or 1h30m.", show_default="no limit")
    ] = "",
    precision: Annotated[
        str, typer.Option("--precision", help="To consider, between commas: fp32, tf32, bf16, fp16; default all.")
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            "--mode", help=f"To consider, between commas: {', '.join(MODES)}; default all."
        ),
    ] = "",
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1, help="Samples of a step.")] = 64,
    impl: options.ImplOption = "",
    layer: options.LayerOption = [],  # noqa: B006  (typer copies it)
    rivals: Annotated[
        bool, typer.Option("--rivals/--no-rivals", help="Also try methods of other packages, such as torchao's.")
    ] = True,
    share_gpu: Annotated[
        bool,
        typer.Option(
            "--share-gpu",
            help="Take turns with other studies on this machine that have the option too: they compile and train at "
            "the same time, and time one by one. The time budget leaves the waiting out.",
        ),
    ] = False,
    max_memory: Annotated[
        str,
        typer.Option(
            "--max-memory",
            help="What a step may need on the device, such as 8GiB or 500MB, with weights and the optimizer's state.",
            show_default="no limit",
        ),
    ] = "",
    front: Annotated[
        bool,
        typer.Option("--front", help="Also save the network of every point of the front; see lamina.load_front."),
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Trained weights: a safetensors state dict or a checkpoint of lamina train."),
    ] = None,
    train_epochs: Annotated[
        int, typer.Option("--train-epochs", min=0, help="Of the network to infer with, if no --weights are given.")
    ] = 1,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=0,
            help="Of each training that judges a plan: from the start with --goal train, of fine-tuning otherwise.",
            show_default="1 to train, 0 to infer",
        ),
    ] = None,
    calibration: Annotated[
        int,
        typer.Option(
            "--calibration",
            min=1,
            help="Training samples set apart to compare plans; at most a fifth. More of them make the standard "
            "error smaller.",
        ),
    ] = 1000,
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, adam or adamw.")] = "sgd",
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", "--lr", min=0, help="Of training; fine-tuning uses a tenth of it."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of plan.toml and the weights.", show_default="<network>-study"),
    ] = None,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    input_: options.InputOption = [],  # noqa: B006  (typer copies it)
    input_fn: options.InputFnOption = "",
    store: options.StoreOption = "",
    report: options.ReportOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure everything anew; by default what was measured before is reused.")
    ] = False,
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
) -> None:
    """Make a network faster: try every method on every layer, and keep what is measured to be faster.

    The whole network is timed at each precision, layout and mode, and by methods of other packages. Each layer is
    timed by each of lamina's methods, in place. The combination that saves the most time within the accuracy budget is
    kept only if the whole network is faster with it. The output folder holds plan.toml and the weights: 'lamina apply'
    or lamina.apply(model, "plan.toml") run any model by the plan, and lamina.load(folder) gives the network back;
    one of your own file or package takes the dense network too: lamina.load(folder, network).

    A study that was interrupted goes on where it stopped: give the same command again.

    Exit codes: 0 done, 1 failed, 2 usage, 3 device or package missing, 70 internal error, 130 interrupted.

    Examples:

        lamina study lenet5 --data fashion-mnist --budget 2m

        lamina study alexnet --goal train --data DIR --epochs 5 --device cuda --report alexnet.html

        lamina study mymodels:net --input-size 3x64x64 --impl circulant\\[block_size=64],sparse --precision bf16
    """
    input_size = options.inputs(input_size, input_, input_fn)
    check_networks([spec], set_, input_size)
    options.dataset(data)
    options.writable("--report", report)
    options.device(device)
    (form,) = options.choices("--format", format_, FORMATS)
    options.choices("--goal", goal, ("train", "infer"))
    options.choices("--optimizer", optimizer, ("sgd", "adam", "adamw"))
    precisions = options.choices("--precision", precision, ("fp32", "tf32", "bf16", "fp16")) if precision else []
    modes = options.choices("--mode", mode, MODES) if mode else []
    methods = [str(one) for one in options.implementations(impl) if one.algorithm or not one.dense]
    patterns = options.layer_patterns(layer)
    limit = seconds("--budget", budget) if budget else None
    most = size("--max-memory", max_memory) if max_memory else None
    if goal == "train" and epochs == 0:
        raise UsageError("--epochs 0: expected at least 1 with --goal train, since plans are judged by training")
    if weights is not None and goal == "train":
        raise UsageError("--weights: a network is trained from its initial weights with --goal train")
    if weights is not None and not weights.is_file():
        raise UsageError(f"--weights: expected a file, got {weights}")

    progress = isolated()
    from lamina import measure
    from lamina.cli.watching import Watcher
    from lamina.pipeline.study import StudyConfig
    from lamina.pipeline.study import study as run_study
    from lamina.store import open_store

    settings = training(optimizer, learning_rate, batch=batch_size, seed=seed)
    config = StudyConfig(
        goal=goal,  # type: ignore[arg-type]  # checked above
        max_accuracy_drop=max_accuracy_drop,
        precisions=tuple(precisions),
        modes=tuple(modes),
        methods=tuple(methods),
        layers=tuple(patterns),
        batch=batch_size,
        epochs=epochs if epochs is not None else int(goal == "train"),
        train_epochs=train_epochs,
        calibration=calibration,
        budget_s=limit,
        rivals=rivals,
        front=front,
        max_memory=most,
    )
    ((target, _),) = networks([spec], set_, input_size)
    folder = output or Path(f"{target.name.replace(':', '-').replace('/', '-')}-study")
    options.writable("--output", folder, folder=True)
    if share_gpu:
        measure.share_device(options.cache_folder() / "turns.lock")
    with (
        surviving(progress),
        open_store(options.store_url(store)) as database,
        Watcher(progress.working) as watch,
    ):
        found = run_study(
            target,
            data,
            settings,
            database,
            folder,
            config,
            cache=options.cache_folder(),
            weights=weights,
            device=options.device_name(device),
            fresh=fresh and not progress.lost,
            command=options.command_line(),
            lost=progress.lost,
            watch=watch,
        )
        place = database.place
        if report is not None:
            from lamina import pipeline

            watch.say(f"report: {pipeline.report(database, found.run_id, report)}")
    if form == "json":
        typer.echo(json.dumps({"run": found.run_id, "folder": str(folder)} | asdict(found.study), indent=1))
    else:
        _print(found)
    typer.echo(f"run {found.run_id} is in {place}; the plan is {folder / 'plan.toml'}", err=True)
    typer.echo(f'apply it: model = lamina.apply(model, "{folder / "plan.toml"}")', err=True)


def seconds(option: str, text: str) -> float:
    """A time such as ``90s``, ``10m``, ``1h30m`` or seconds without a unit.

    >>> seconds("--budget", "1h30m")
    5400.0

    Raises:
        UsageError: naming the option.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise UsageError(f"{option}: expected a time such as 90s, 10m or 1h30m, got {text!r}")
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not total:
        raise UsageError(f"{option}: expected more than 0 seconds, got {text!r}")
    return total


def size(option: str, text: str) -> int:
    """A number of bytes such as ``8GiB``, ``500MB`` or ``1.5 GB``.

    >>> size("--max-memory", "8GiB")
    8589934592

    Raises:
        UsageError: naming the option.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(i?)B", text.strip(), re.IGNORECASE)
    total = 0
    if found:
        number, prefix, binary = found.groups()
        total = int(float(number) * (1024 if binary else 1000) ** (1 + "KMGT".index(prefix.upper())))
    if not total:
        raise UsageError(f"{option}: expected a size such as 8GiB or 500MB, got {text!r}")
    return total


def _print(found: Studied) -> None:
    from lamina.cli import printing
    from lamina.report.study_table import layers_table, wholes_table

    printing.show(wholes_table(found.study, printing.width()), layers_table(found.study, printing.width()))
