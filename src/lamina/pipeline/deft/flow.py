"""``deft``: inputs and weight bits that a trained network can do without, as far as measured latency rewards it.

train or load -> search -> eliminate -> recover -> tune -> weight formats -> measure -> save

Source: Hill et al., DeftNN, MICRO 2017; the steps themselves are in the rooms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from lamina import measure
from lamina.build import Target
from lamina.errors import LaminaError
from lamina.pipeline.deft import onnx_file, pruning, recipe_files, storing
from lamina.pipeline.deft.calibration import ELEMENTS, material
from lamina.pipeline.deft.choosing import Chooser
from lamina.pipeline.deft.composition import candidates, flattened, foldable
from lamina.pipeline.deft.deployed import Place
from lamina.pipeline.deft.layers import layer_results
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.deft.records import Asked, Measured, Outcome
from lamina.pipeline.deft.trained import pretrained
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.watch import Watch, unwatched
from lamina.spec.training import Training
from lamina.store import Store

CHECKPOINT, JOURNAL = "dense.safetensors", "search.json"
"""What a folder holds besides the result, so that a stopped job can go on."""


def deft(
    target: Target,
    data: str,
    settings: Training,
    store: Store,
    folder: Path,
    asked: Asked,
    *,
    cache: Path,
    weights: Path | None = None,
    onnx: Path | None = None,
    device: str = "cpu",
    resume: bool = False,
    command: str = "",
    watch: Watch = unwatched,
) -> Outcome:
    """Make a trained network faster within an accuracy budget, and save it.

    Args:
        target: the network; its number of classes is the data's.
        data: a data set with train and test splits. Some training samples are set apart to choose by.
        settings: how to train it, where no ``weights`` are given, and to tune it.
        store: the run, its epochs, and the whole network before and after.
        folder: for the result, and for what makes ``resume`` possible: the trained weights and the search so far.
        asked: how far to go.
        cache: folder of the machine's measured roofs.
        weights: a safetensors file of a trained state, or a checkpoint of ``lamina train``.
        onnx: file to export the result to.
        device: where it will run.
        resume: reuse what is in the folder.
        command: the command line, for provenance.
        watch: is told progress.

    Raises:
        UsageError: data, weights and network do not fit each other, or nothing found does what was asked.
        MissingError: an export or a comparison needs a package that is not installed.
    """
    if onnx:
        onnx_file.require()
    pruning.require(asked.compare)
    at = measure.resolve(device)
    parts = material(data, target.inputs[0].shape, asked.calibration, settings.seed, at)
    place = Place(at, asked.precision, asked.batch, parts)
    environment = measure.environment(place.device)
    more = {"data": data, "weights": str(weights or ""), "deft": asdict(asked)}
    this, _ = begin("deft", target, settings, environment, store, command, resume, more)
    with closing(store, this.id) as remarks:

        def remark(text: str) -> None:
            remarks.append(text)
            watch(text)

        learner = Learner(settings, place.material, place.device, store, this.id, watch)
        dense = _dense(target, learner, weights, folder / CHECKPOINT, resume)
        if weights:
            remark("the weights given may have been trained on the samples that are chosen by")
        chooser = _chooser(dense, asked, place, remark, watch)
        if not resume:
            (folder / JOURNAL).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        subject: dict[str, str | int] = {
            "network": target.name,
            "data": data,
            "weights": _digest(dense),
            "device": environment.device,
        }
        subject |= {"lamina": environment.lamina, "threads": torch.get_num_threads(), "seed": settings.seed}
        searched = chooser.search(folder / JOURNAL, subject)
        point, (model, folded) = chooser.choose(searched, learner)
        formats = chooser.store_weights(model, chooser.least(searched), cache)
        if asked.faster and _slower(place, dense, model):
            remark("timed at length, what was chosen is slower than the dense network, which is kept")
            point, (model, folded), formats = searched.dense, chooser.compose(searched.dense.choice), {}
        networks = {"dense": place.deploy(dense), "deft": place.deploy(model)}
        others = {name: _pruned(name, dense, model, learner, place, asked) for name in asked.compare}
        networks |= {name: place.deploy(other) for name, other in others.items()}
        times = place.by_turns(*networks.values())
        whole, result, *compared = [
            place.measured(name, network, time) for (name, network), time in zip(networks.items(), times, strict=True)
        ]
        _judge(whole, result, asked, remark)
        store.add_what_if(this.id, storing.what_if(target, asked, whole, result))
        for one in (whole, result, *compared):
            store.add(this.id, storing.row(target, asked, one, place.material.classes, environment.device))
        origin = recipe_files.Origin(target.name, place.material.classes, target.network)
        facts = {"run": this.id, "choice": point.choice, "asked": asdict(asked)}
        recipe_files.save(folder, networks["deft"], dense, origin, asked.precision, facts)
        failure = _exported(model, place, onnx, watch) if onnx else ""
        layers = layer_results(dense, chooser.found, point.choice, folded, formats, searched)
    return Outcome(
        this.id, target.name, layers, whole, result, searched.front, point, tuple(compared), tuple(remarks), failure
    )  # fmt: skip


def _dense(target: Target, learner: Learner, weights: Path | None, checkpoint: Path, resume: bool) -> nn.Module:
    """The dense network, trained here or read."""
    torch.manual_seed(learner.settings.seed)
    network = target.make(learner.material.classes)
    if weights:
        return pretrained(network, weights).to(learner.device).eval()
    return learner.learn(network, learner.settings, checkpoint, resume)


def _chooser(
    dense: nn.Module, asked: Asked, place: Place, remark: Callable[[str], None], watch: Watch
) -> Chooser:  # fmt: skip
    """With the variants of every layer, from what its layers see of the calibration samples."""
    parts = place.material
    # Small ones: what a convolution's window sees is written out, in float64.
    batches = (x.to(place.device) for x, _ in parts.ordered(parts.calibration, parts.room(ELEMENTS // 4)))
    watch(f"looking for representatives at shares of {', '.join(map(str, asked.shares))}")
    reason = foldable(dense)
    if reason:
        remark(f"producers are not folded: {reason}")
    found = candidates(dense, asked.config, asked.shares, batches, {} if reason else flattened(dense))
    return Chooser(asked, place, dense, found, not reason, watch)


def _exported(model: nn.Module, place: Place, path: Path, watch: Watch) -> str:
    """Why there is no ONNX file, or nothing: all else is done and saved by then."""
    try:
        watch(f"{path}: {onnx_file.export(model, place.example('fp32').cpu(), path)}")
    except LaminaError as error:
        return str(error)
    return ""


def _slower(place: Place, dense: nn.Module, model: nn.Module) -> bool:
    before, after = place.by_turns(place.deploy(dense), place.deploy(model))
    return after.median_us > before.median_us and not after.overlaps(before)


def _judge(dense: Measured, result: Measured, asked: Asked, remark: Callable[[str], None]) -> None:
    """Remarks where the outcome is less than it looks."""
    gained = dense.latency.median_us / result.latency.median_us
    if dense.latency.overlaps(result.latency):
        remark("the difference in latency is inside the spread of the measurement")
    elif gained < (asked.target_speedup or 1):
        remark(f"timed at length, the speed-up is {gained:.2f}, less than {asked.target_speedup or 1:g}")
    drop = dense.test_accuracy - result.test_accuracy
    if drop > asked.max_accuracy_drop:
        remark(
            f"on test samples the drop is {drop:.2f} points, more than on those that were chosen by: "
            "allow less, or set more samples apart"
        )


def _pruned(name: str, dense: nn.Module, ours: nn.Module, learner: Learner, place: Place, asked: Asked) -> nn.Module:
    """The dense network pruned another way as far as ours, tuned as long."""
    learner.watch(f"pruning by {name} as far")
    model, finish = pruning.pruned(name, dense, place.example("fp32"), ours)
    learner.tune(model, asked.tuning)
    finish()
    return model


def _digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]
