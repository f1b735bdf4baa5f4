"""``lamina deft``: prune and quantize a trained network within an accuracy budget."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.networks import check_networks, networks, training
from lamina.errors import LaminaError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.pipeline.deft.records import LayerResult, Measured, Outcome

FORMATS = ("table", "json")
MAX_KEEP = math.nextafter(1, 0)


@handled
def deft(
    spec: options.OneSpecArgument,
    data: options.DataOption,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output folder.", show_default="<network>-deft")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Trained weights: a safetensors state dict or a checkpoint of lamina train."),
    ] = None,
    train_epochs: Annotated[
        int, typer.Option("--train-epochs", min=1, help="Epochs of training if no --weights are given.")
    ] = 15,
    epochs: Annotated[int, typer.Option("--epochs", min=0, help="Epochs of fine-tuning after pruning.")] = 0,
    max_accuracy_drop: Annotated[
        float,
        typer.Option(
            "--max-accuracy-drop",
            help="Percentage points of calibration accuracy that may be lost. Of networks without class scores: the "
            "relative error of their outputs, in percent.",
        ),
    ] = 1.0,
    target_speedup: Annotated[
        float | None, typer.Option("--target-speedup", help="Minimum speedup; the most accurate network with it.")
    ] = None,
    keep_ratios: Annotated[
        str,
        typer.Option(
            "--keep-ratios",
            help="Fractions of its input channels that a layer may keep, besides 1.",
            show_default="0.75,0.5,0.25, or none with --alpha",
        ),
    ] = "",
    alpha: Annotated[
        str,
        typer.Option(
            "--alpha",
            help="DeftNN's correlation thresholds, such as 0.9,0.7: of vectors correlated above, a layer keeps one.",
        ),
    ] = "",
    layer: options.LayerOption = [],  # noqa: B006
    shares: Annotated[str, typer.Option("--shares", hidden=True, help="Deprecated name of --keep-ratios.")] = "",
    recovery: Annotated[
        str, typer.Option("--recovery", help="Compensation for pruned inputs: scale, bias, least_squares, none.")
    ] = "least_squares",
    align: Annotated[int, typer.Option("--align", min=1, help="Round the number of kept inputs up to a multiple.")] = 1,
    weight_format: Annotated[
        str,
        typer.Option("--weight-format", help="auto (where measured to be faster), none, or one format for all layers."),
    ] = "auto",
    calibration: Annotated[
        int, typer.Option("--calibration", min=1, help="Training samples set apart for calibration; at most a fifth.")
    ] = 1000,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", min=1, help="Batch size of the measured latency.")
    ] = 1,
    precision: Annotated[str, typer.Option("--precision", help="Of the result: fp32, tf32, bf16, fp16.")] = "fp32",
    compare: Annotated[
        str,
        typer.Option(
            "--compare",
            help="Also measure others, tuned as long: magnitude, iterative-magnitude, dense, channels (whole output "
            "channels by L1 norm).",
        ),
    ] = "",
    onnx: Annotated[Path | None, typer.Option("--onnx", help="Also export the result to this file.")] = None,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", "--lr", min=0, help="Of SGD; fine-tuning uses a third of it.")
    ] = 0.05,
    train_batch: Annotated[int, typer.Option("--train-batch", min=1, help="Batch size of training.")] = 64,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    input_: options.InputOption = [],  # noqa: B006  (typer copies it)
    input_fn: options.InputFnOption = "",
    store: options.StoreOption = "",
    resume: Annotated[bool, typer.Option("--resume", help="Reuse the training and the search in --output.")] = False,
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
) -> None:
    """Prune input channels and quantize weights of a trained network, and save the result if it is faster.

    Each layer is tried at several keep ratios. Pruned channels are selected by correlation of their weights (DeftNN's
    synapse vector elimination) or by contribution, and the remaining weights are recovered by least squares on
    calibration data. Keep ratios of all layers are combined along the front of accuracy over measured latency. The
    output folder holds weights and a recipe; lamina.load(folder) returns the network as a module, and one of your own
    file or package with lamina.load(folder, network).

    The outputs of a network without class scores are compared with those of the dense network instead.

    Exit codes: 0 done, 1 failed, 2 usage, 3 device or package missing, 130 interrupted.

    Examples:

        lamina deft lenet5 --data fashion-mnist --train-epochs 5

        lamina deft vgg11_cifar --data DIR --weights vgg.safetensors --alpha 0.9,0.7 --layer 'features.*'

        lamina deft vgg11_cifar --data DIR --weights vgg.safetensors --target-speedup 1.5 --epochs 2 --onnx vgg.onnx
    """
    input_size = options.inputs(input_size, input_, input_fn)
    check_networks([spec], set_, input_size)
    options.dataset(data)
    options.writable("--onnx", onnx)
    options.device(device)
    alphas = _numbers("--alpha", alpha, 1.0)
    ratios = _numbers("--keep-ratios", shares or keep_ratios or ("" if alphas else "0.75,0.5,0.25"), MAX_KEEP)
    options.choices("--format", format_, FORMATS)
    options.choices("--precision", precision, ("fp32", "tf32", "bf16", "fp16"))
    options.choices("--recovery", recovery, ("scale", "bias", "least_squares", "none"))

    from lamina.cli.watching import Watcher
    from lamina.pipeline.deft.flow import deft as make_deft
    from lamina.pipeline.deft.recipe_files import RECIPE, how_to_load
    from lamina.pipeline.deft.records import DeftConfig
    from lamina.store import open_store

    settings = training("sgd", learning_rate, epochs=train_epochs, batch=train_batch, seed=seed)
    config = DeftConfig(
        keep_ratios=ratios,
        alphas=alphas,
        layers=tuple(pattern for text in layer for pattern in options.split(text)),
        recovery=recovery,  # type: ignore[arg-type]  # checked there
        align=align,
        max_accuracy_drop=max_accuracy_drop,
        target_speedup=target_speedup,
        format=weight_format,
        tuning=epochs,
        calibration=calibration,
        batch=batch_size,
        precision=precision,  # type: ignore[arg-type]
        compare=tuple(options.split(compare)),
    )
    ((target, _),) = networks([spec], set_, input_size)
    folder = output or Path(f"{target.name.replace(':', '-').replace('/', '-')}-deft")
    options.writable("--output", folder, folder=True)
    with Watcher() as watch, open_store(options.store_url(store)) as database:
        outcome = make_deft(
            target,
            data,
            settings,
            database,
            folder,
            config,
            cache=options.cache_folder(),
            weights=weights,
            onnx=onnx,
            device=options.device_name(device),
            resume=resume,
            command=options.command_line(),
            watch=watch,
        )
        place = database.place
    if format_ == "json":
        typer.echo(json.dumps(outcome.document(), indent=1))
    else:
        _print(outcome)
    saved = f"; {how_to_load(folder)}" if (folder / RECIPE).exists() else ""
    typer.echo(f"run {outcome.run_id} is in {place}{saved}", err=True)
    if outcome.failure:
        raise LaminaError(outcome.failure)


def _numbers(option: str, text: str, most: float) -> tuple[float, ...]:
    """Numbers above 0 and up to ``most`` between commas.

    Raises:
        UsageError: naming the option.
    """
    try:
        values = tuple(float(item) for item in options.split(text))
    except ValueError as error:
        raise UsageError(f"{option}: expected numbers such as 0.75,0.5, got {text!r}") from error
    if any(not 0 < value <= most for value in values):
        raise UsageError(f"{option}: expected numbers above 0 and {'up to 1' if most == 1 else 'below 1'}, got {text}")
    return values


def _print(outcome: Outcome) -> None:
    from lamina.cli import printing

    printing.show(layer_table(outcome, printing.width()), network_table(outcome, printing.width()))
    for remark in outcome.remarks:
        typer.echo(f"note: {remark}")


def layer_table(outcome: Outcome, width: int | None = None) -> Table:
    """Kept inputs, errors and reasons of each layer."""
    from lamina.report.plain_table import Line, plain_table, reasons

    lines = [Line(_layer_cells(one), None if one.kept < one.inputs or one.format else "dim") for one in outcome.layers]
    headings = ["layer", "type", "inputs", "outputs", "correlation", "error", "format", "rounding", "reason"]
    return plain_table(
        headings,
        lines,
        numeric=[*headings[2:6], "rounding"],
        title=f"Deft: {outcome.network} (run {outcome.run_id})",
        caption=reasons(
            (one.layer, f"in {one.format or 'no'} format: {one.format_reason}")
            for one in outcome.layers
            if one.format_reason
        ),
        width=width,
        dispensable=("rounding", "type", "correlation"),
        wrapped="reason",
    )


def _layer_cells(one: LayerResult) -> list[str]:
    return [
        one.layer,
        one.kind,
        f"{one.kept} of {one.inputs}",
        str(one.outputs) if one.live == one.outputs else f"{one.live} of {one.outputs}",
        "" if one.alpha is None else f">= {one.alpha:.3f}",
        "" if one.error is None else f"{one.error:.1%}",
        one.format or "dense",
        "" if one.format_error is None else f"{one.format_error:.1%}",
        one.reason,
    ]


def network_table(outcome: Outcome, width: int | None = None) -> Table:
    """The dense network, the result, and the compared pruning methods."""
    from lamina.report.plain_table import Line, plain_table

    accuracy = outcome.objective == "accuracy"

    def percent(value: float) -> str:
        return f"{value if accuracy else 100 - value:.2f} %"

    def cells(one: Measured) -> list[str]:
        from lamina.report import units

        points = [f"{one.test_accuracy - outcome.dense.test_accuracy:+.2f}"] if accuracy else []
        return [
            one.name,
            percent(one.test_accuracy),
            *points,
            percent(one.calibration_accuracy),
            units.duration(one.latency.median_us),
            units.durations(one.latency.q1_us, one.latency.q3_us),
            f"{outcome.dense.latency.median_us / one.latency.median_us:.2f}x",
            units.count(one.parameters),
            units.count(one.multiplications),
            units.size(one.bytes),
        ]

    tested = ["test accuracy", "points"] if accuracy else ["output error"]
    headings = ["network", *tested, "calibration", "latency", "quartiles", "speedup"]
    headings += ["parameters", "multiplications", "stored"]
    lines = [Line(cells(one), "green" if one is outcome.result else None)
             for one in (outcome.dense, outcome.result, *outcome.compared)]  # fmt: skip
    front = ", ".join(f"{percent(p.accuracy)} at {1 / p.latency:.2f}x" for p in outcome.front)
    return plain_table(
        headings,
        lines,
        numeric=headings[1:],
        caption=[f"front of {outcome.objective}, on calibration data: {front}"],
        width=width,
        dispensable=("stored", "quartiles", "parameters", "multiplications", "calibration"),
    )
