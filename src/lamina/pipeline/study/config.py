"""What a study may try, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lamina import build
from lamina.accelerate.registry import configuration
from lamina.errors import UsageError, nearest
from lamina.spec import Method
from lamina.spec.plan import MODES

Goal = Literal["train", "infer"]

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")

ALGORITHMS = ("space_to_depth", "gemm", "fft", "winograd")
"""Of convolutions; ``direct`` is what the library selects, which all candidates are compared with."""
BLOCK_SIZES = (64, 32, 128, 16)
KEEP_RATIOS = (0.25, 0.5, 0.125, 0.75)
TRAINED_RATIOS = (0.5, 0.25, 0.75)
FORMATS = ("e4m3", "half")
"""Variants of methods, those that most often pay first."""


@dataclass(frozen=True)
class StudyConfig:
    """Limits of a study.

    Args:
        goal: ``train`` measures training steps, ``infer`` forward passes.
        max_accuracy_drop: points of accuracy that the plan may lose; for ``infer``, the loss plus one standard error.
            Without class scores, the relative error of the outputs in percent.
        precisions: to consider; those of the device by default.
        modes: to consider; those of the device by default.
        methods: of layers, such as ``circulant[block_size=64]``; every method by default.
        layers: patterns of the names of layers that may change; all by default.
        batch: samples of a step.
        epochs: of each training that measures accuracy; for ``infer`` of fine-tuning after a change.
        train_epochs: of the training of the dense network, for ``infer`` without weights.
        calibration: samples that candidates are compared on.
        budget_s: seconds for the whole study; no limit by default.
        rivals: whether to try methods of other packages.
        front: whether to save the network of every point of the front, for ``infer``.
        max_memory: bytes that a step may need on the device, with weights and the optimizer's state; no limit by
            default.

    Raises:
        UsageError: naming what was expected.
    """

    goal: Goal = "infer"
    max_accuracy_drop: float = 1.0
    precisions: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    batch: int = 64
    epochs: int = 0
    train_epochs: int = 1
    calibration: int = 1000
    budget_s: float | None = None
    rivals: bool = True
    front: bool = False
    max_memory: int | None = None

    def __post_init__(self) -> None:
        for option, values, known in (
            ("goal", (self.goal,), get_args(Goal)),
            ("precision", self.precisions, PRECISIONS),
            ("mode", self.modes, MODES),
        ):
            for value in values:
                if value not in known:
                    raise UsageError(f"{option} {value!r} is unknown: {nearest(value, known)}")
        if not 0 <= self.max_accuracy_drop <= 100:
            raise UsageError(f"max accuracy drop: expected points from 0 to 100, got {self.max_accuracy_drop}")
        if min(self.batch, self.calibration, self.epochs + 1, self.train_epochs + 1) < 1:
            raise UsageError(
                "expected batch and calibration of at least 1 and epochs of at least 0, got "
                f"{self.batch}, {self.calibration}, {self.epochs} and {self.train_epochs}"
            )
        if self.budget_s is not None and not 0 < self.budget_s < float("inf"):
            raise UsageError(f"budget: expected a positive time, got {self.budget_s} s")
        if self.max_memory is not None and self.max_memory < 1:
            raise UsageError(f"max memory: expected at least 1 byte, got {self.max_memory}")
        if self.goal == "train" and not self.epochs:
            raise UsageError("goal train: expected at least 1 epoch, since accuracy is that of a trained network")
        for method in map(Method.parse, self.methods):
            if method.algorithm:
                build.require_algorithm(method)
            else:
                configuration(method)

    @property
    def training(self) -> bool:
        """Whether steps have a backward pass."""
        return self.goal == "train"

    def offers(self) -> list[Method]:
        """The methods to try on each layer, those that keep its results first."""
        if self.methods:
            return [Method.parse(text) for text in self.methods]
        texts = ["fused", "sparse", *(f"dense:{one}" for one in ALGORITHMS)]
        texts += [f"weight-only[format={one}]" for one in FORMATS if not self.training]
        if self.training:  # weights are not trained yet: nothing tells which of a layer's inputs matter
            even = "eliminated[recovery=variance,keep={},select=even,impl=gather]"
            texts += [even.format(one) for one in TRAINED_RATIOS]
        else:
            texts += [f"eliminated[recovery=least_squares,keep={one}]" for one in KEEP_RATIOS]
        extra = ",rescale=true,signs=true" if self.training else ""
        texts += [f"circulant[block_size={one}{extra}]" for one in BLOCK_SIZES if self.training or self.epochs]
        return [Method.parse(text) for text in texts]


def lossless(impl: str) -> bool:
    """Whether an implementation computes what the dense layer does, up to rounding."""
    return Method.parse(impl).name in ("dense", "fused", "sparse")
