"""Settings of a training run."""

from __future__ import annotations

from math import cos, pi
from typing import Annotated, Literal

from pydantic import Field

from lamina.spec.layers.base import NonNegative, Positive
from lamina.spec.validated import Validated
from lamina.spec.workload import Precision

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Training(Validated):
    """All settings that determine the trained weights, besides the network and the data.

    ``batch`` is the global batch size of all processes. bf16 and fp16 use autocast: weights stay in float32.
    ``clip_norm`` bounds the total norm of all gradients (Pascanu, Mikolov, Bengio, ICML 2013, algorithm 1). ``augment``
    and ``cutout``, the side of a square in pixels, are those of `lamina.build.data.loader`.
    """

    epochs: Positive = 15
    batch: Positive = 64
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.05
    momentum: Fraction = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: NonNegative = 100
    label_smoothing: Fraction = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    precision: Precision = "fp32"
    augment: bool = False
    cutout: NonNegative = 0
    seed: NonNegative = 0

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step: linear warmup over ``warmup_steps``, then cosine decay to zero.

        >>> Training(learning_rate=1.0, warmup_steps=0).rate(50, 100)
        0.5
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        progress = (step - self.warmup_steps) / max(steps - self.warmup_steps, 1)
        return self.learning_rate * (1 + cos(pi * progress)) / 2
