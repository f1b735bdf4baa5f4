"""The dense network of a study, and what trains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from lamina import run
from lamina.build import Target
from lamina.pipeline import updates
from lamina.pipeline.deft.calibration import Material
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.deft.trained import pretrained, require_copies
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.uniform import available
from lamina.pipeline.watch import Watch
from lamina.spec.training import Training
from lamina.store import Store


def make_learner(
    settings: Training,
    config: StudyConfig,
    parts: Material,
    device: torch.device,
    store: Store,
    run_id: str,
    watch: Watch,
    note: Callable[[str], object],
) -> Learner:
    """On a GPU, what is only to be judged is trained in CUDA graphs, channels-last, and in TF32 in place of fp32.

    In strict fp32, trainings of a large network would take most of the study's time.
    """
    if device.type != "cuda":
        return Learner(settings, parts, device, store, run_id, watch, note)
    precisions, _ = available(config, device)
    if settings.precision == "fp32" and "tf32" in precisions:
        settings = settings.model_copy(update={"precision": "tf32"})
    mode = updates.fastest(device)
    return Learner(settings, parts, device, store, run_id, watch, note, mode, "nhwc")


def dense_network(
    target: Target, learner: Learner, config: StudyConfig, weights: Path | None, checkpoint: Path, budget: Budget
) -> nn.Module:
    """The user's network in float32 on the device: to infer it is trained, unless there are only synthetic data.

    Args:
        target: makes the network.
        learner: trains it, on its data and device.
        config: goal and epochs.
        weights: of the trained network, which is not trained again.
        checkpoint: from which a training that was interrupted goes on.
        budget: ends the training.

    Raises:
        UnsupportedError: the network cannot be copied.
        UsageError: the weights are those of another network.
    """
    torch.manual_seed(learner.settings.seed)
    network = target.in_float32(learner.material.classes, learner.note)
    run.size_lazy_parameters(network, run.moved(learner.material.example(2), torch.device("cpu")))
    require_copies(network, "study")
    if weights:
        return pretrained(network, weights).to(learner.device)
    if config.training or not config.train_epochs or learner.material.learn.name == "synthetic":
        return network.to(learner.device)
    epochs = learner.settings.model_copy(update={"epochs": config.train_epochs})
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    return learner.learn(network, epochs, checkpoint, resume=True, stop=lambda: budget.over)
