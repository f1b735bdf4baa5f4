"""``deft``: prune input channels and quantize weights of a trained network where that lowers the measured latency.

train or load -> search -> prune -> recover -> tune -> weight formats -> measure -> save

Source: Hill et al., DeftNN, MICRO 2017: synapse vector elimination and near-compute data fission.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from lamina import measure, run
from lamina.build import Target
from lamina.errors import LaminaError, UnsupportedError, UsageError
from lamina.pipeline import updates
from lamina.pipeline.deft import onnx_file, pruning, recipe_files, storing
from lamina.pipeline.deft.calibration import ELEMENTS, material
from lamina.pipeline.deft.choosing import Chooser
from lamina.pipeline.deft.composition import candidates, flattened, foldable, require_prunable
from lamina.pipeline.deft.deployed import Deployment
from lamina.pipeline.deft.layers import layer_results
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.deft.records import DeftConfig, Measured, Objective, Outcome
from lamina.pipeline.deft.trained import pretrained, require_copies
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.watch import Watch, tracked, unwatched
from lamina.spec.training import Training
from lamina.store import Store

CHECKPOINT, JOURNAL = "dense.safetensors", "search.json"
"""Files in the output folder that a stopped job resumes from."""

DROP = "--max-accuracy-drop"


def deft(
    target: Target,
    data: str,
    settings: Training,
    store: Store,
    folder: Path,
    config: DeftConfig,
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

    The outputs of networks without class scores are compared with the dense network's instead: ``max_accuracy_drop`` is
    then their relative error in percent.

    Args:
        target: the network; its number of classes is the data's.
        data: a data set with train and test splits. Some training samples are set apart for calibration.
        settings: of training, where no ``weights`` are given, and of fine-tuning.
        store: receives the run, its epochs, and the whole network before and after.
        folder: of the result, the trained weights and the state of the search.
        config: keep ratios, accuracy budget and formats.
        cache: folder of the machine's measured roofline.
        weights: a safetensors state dict, or a checkpoint of ``lamina train``.
        onnx: file to export the result to.
        device: to run and measure on.
        resume: reuse the training and the search in the folder.
        command: the command line, for provenance.
        watch: receives progress messages.

    Raises:
        UsageError: data, weights and network do not fit each other, no network meets the accuracy budget and target, or
            a network without class scores is to be fine-tuned.
        MissingError: an export or a comparison needs a package that is not installed.
    """
    if onnx:
        onnx_file.require()
        if len(target.inputs) != 1 or target.made:
            raise UsageError(f"--onnx: expected a network of one input, {target.name} has {len(target.inputs)}")
    pruning.require(config.compare)
    at = measure.resolve(device)
    shape = max((source.shape for source in target.inputs), key=prod, default=(1,))
    parts = material(data, shape, config.calibration, settings.seed, at, target.train_test)
    deployment = Deployment(at, config.precision, config.batch, parts)
    environment = measure.environment(deployment.device)
    more = {"data": data, "weights": str(weights or ""), "deft": asdict(config)}
    this, _ = begin("deft", target, settings, environment, store, command, resume, more)
    with closing(store, this.id) as remarks:

        def remark(text: str) -> None:
            remarks.append(text)
            watch(text)

        mode = updates.fastest(deployment.device)
        learner = Learner(settings, deployment.material, deployment.device, store, this.id, watch, remark, mode)
        dense = _dense(target, learner, config, deployment, weights, folder / CHECKPOINT, resume)
        require_copies(dense, "deft")
        deployment = deployment.judging(dense)
        if deployment.reference is not None:
            remark(f"the network has no class scores: {DROP} limits the relative error of its outputs, in percent")
            if config.tuning:
                raise UsageError("fine-tuning needs class scores, which the network does not have: leave out --epochs")
        if weights:
            remark("the given weights may have been trained on the calibration samples")
        chooser = _chooser(dense, config, deployment, remark, watch)
        if not resume:
            (folder / JOURNAL).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        subject: dict[str, str | int] = {
            "network": target.name,
            "data": data,
            "weights": recipe_files.digest(dense),
            "device": environment.device,
        }
        subject |= {"lamina": environment.lamina, "threads": torch.get_num_threads(), "seed": settings.seed}
        searched = chooser.search(folder / JOURNAL, subject)
        point, (model, folded) = chooser.choose(searched, learner)
        model, formats = chooser.store_weights(model, chooser.min_accuracy(searched), cache)
        if config.must_be_faster and _slower(deployment, dense, model):
            remark("in the final measurement the chosen network is slower than the dense one, which is kept")
            point, (model, folded), formats = searched.dense, chooser.compose(searched.dense.choice), {}
        networks = {"dense": deployment.deploy(dense), "deft": deployment.deploy(model)}
        for name in config.compare:
            try:
                other = _pruned(name, dense, model, learner, deployment, config)
            except UnsupportedError as error:
                remark(f"{name} is left out: {error}")
            else:
                networks[pruning.LABELS.get(name, name)] = deployment.deploy(other)
        times = deployment.interleaved(*networks.values())
        whole, result, *compared = [
            deployment.measured(name, network, time)
            for (name, network), time in tracked(
                "measuring accuracies", list(zip(networks.items(), times, strict=True)), len(networks), watch
            )
        ]
        _judge(whole, result, config, deployment.objective, remark)
        store.add_what_if(this.id, storing.what_if(target, config, whole, result, deployment.objective))
        shape = deployment.output_shape(networks["dense"])
        for one in (whole, result, *compared):
            store.add(this.id, storing.row(target, config, one, shape, environment.device))
        origin = recipe_files.Origin(target.name, deployment.material.classes, target.network)
        facts = {"run": this.id, "choice": point.choice, "config": asdict(config)}
        facts |= {"objective": deployment.objective}
        recipe_files.save(folder, networks["deft"], dense, origin, config.precision, facts)
        failure = _exported(model, deployment, onnx, watch) if onnx else ""
        layers = layer_results(dense, chooser.found, point.choice, folded, formats, searched, deployment.objective)
    return Outcome(
        this.id, target.name, layers, whole, result, searched.front, point, tuple(compared), tuple(remarks), failure,
        deployment.objective, tuple(chooser.tuned),
    )  # fmt: skip


def _dense(
    target: Target,
    learner: Learner,
    config: DeftConfig,
    deployment: Deployment,
    weights: Path | None,
    checkpoint: Path,
    resume: bool,
) -> nn.Module:
    """The dense network, trained or loaded."""
    torch.manual_seed(learner.settings.seed)
    network = target.in_float32(learner.material.classes, learner.note)
    run.size_lazy_parameters(network, run.moved(deployment.example("fp32"), torch.device("cpu")))
    require_prunable(network, config.layers)  # before hours of training
    if weights:
        return pretrained(network, weights).to(learner.device).eval()
    return learner.learn(network, learner.settings, checkpoint, resume)


def _chooser(
    dense: nn.Module, config: DeftConfig, deployment: Deployment, remark: Callable[[str], None], watch: Watch
) -> Chooser:  # fmt: skip
    """With the variants of every layer, from its inputs on training samples."""
    parts = deployment.material
    # Small batches: the unfolded inputs of convolutions are materialized in float64.
    size = parts.batch_size(ELEMENTS // 4)
    loaded = (run.moved(x, deployment.device) for x, _ in parts.fitting(size))
    batches = tracked("observing the inputs of layers", loaded, -(-len(parts.calibration) // size), watch)
    watch(f"searching synapse vectors to keep at {config.candidates}")
    several = isinstance(deployment.example(), tuple)
    reason = "channels are followed through networks of one input" if several else foldable(dense)
    if reason:
        remark(f"dead output channels of the producers are not pruned: {reason}")
    found = candidates(
        dense, config.elimination, config.keep_ratios, batches, {} if reason else flattened(dense),
        alphas=config.alphas, patterns=config.layers, watch=watch,
    )  # fmt: skip
    return Chooser(config, deployment, dense, found, not reason, watch)


def _exported(model: nn.Module, deployment: Deployment, path: Path, watch: Watch) -> str:
    """Export to ONNX; returns why that failed, or nothing. Everything else is saved by then."""
    try:
        watch(f"{path}: {onnx_file.export(model, cast(Tensor, deployment.example('fp32')).cpu(), path)}")
    except LaminaError as error:
        return str(error)
    return ""


def _slower(deployment: Deployment, dense: nn.Module, model: nn.Module) -> bool:
    before, after = deployment.interleaved(deployment.deploy(dense), deployment.deploy(model))
    return after.median_us > before.median_us and not after.overlaps(before)


def _judge(
    dense: Measured, result: Measured, config: DeftConfig, objective: Objective, remark: Callable[[str], None]
) -> None:
    """Add notes where the outcome misses its target."""
    gained = dense.latency.median_us / result.latency.median_us
    if dense.latency.overlaps(result.latency):
        remark("the difference in latency is inside the spread of the measurement")
    elif gained < (config.target_speedup or 1):
        remark(f"in the final measurement the speedup is {gained:.2f}, less than {config.target_speedup or 1:g}")
    drop = dense.test_accuracy - result.test_accuracy
    if drop > config.max_accuracy_drop:
        lost = {"accuracy": f"accuracy drops by {drop:.2f} points", "output error": f"the output error is {drop:.2f} %"}
        remark(
            f"on the test samples {lost[objective]}, more than on the calibration samples: "
            f"lower {DROP}, or use more calibration samples"
        )


def _pruned(
    name: str, dense: nn.Module, ours: nn.Module, learner: Learner, deployment: Deployment, config: DeftConfig
) -> nn.Module:
    """The dense network pruned by another method to the same size, and fine-tuned as long."""
    learner.watch(f"comparing with {name}")
    return pruning.tuned(name, dense, deployment.example("fp32"), ours, learner.tune, config.tuning)
