"""Masks of zeros over a training, for the simulator: after each epoch, of the convolutions in Spartan's figures.

Each network trains on the package's own Fashion-MNIST by ``lamina sparsity``, whose command is kept in the file. Files
that are there are kept, so an interrupted run continues with the next network. VGG-16 and ResNet-18 on images of 224 x
224 need a GPU; the others take minutes on a CPU. With ``--quick`` a network takes two iterations of four images, into
another folder.

Run: python -m benchmarks.record_masks vgg16 resnet18
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import source
from lamina.simulate.workloads.recorded import SHIPPED

SAMPLES = 6500
"""Training samples of the shipped Fashion-MNIST."""


@dataclass(frozen=True)
class Recording:
    """A training of ``epochs``, and the layers and images of a batch whose masks are kept after each."""

    layers: tuple[str, ...]
    images: int
    epochs: int
    batch: int = 64
    learning_rate: float = 5e-4

    @property
    def iterations(self) -> int:
        """Of an epoch."""
        return -(-SAMPLES // self.batch)


RECORDINGS = {
    "vgg11_cifar": Recording(("features.13", "features.16"), 32, 5),
    "resnet10_cifar": Recording(("layer4.0.conv2",), 32, 5),
    "alexnet": Recording(("features.3", "features.6", "features.8", "features.10"), 8, 3, 32, 3e-4),
    # One of each group of equal shapes, as in figures 6.18 and 6.19. The first maps are large: few images.
    "vgg16": Recording(
        ("features.2", "features.5", "features.7", "features.10", "features.12", "features.17", "features.19",
         "features.24"), 1, 3, 64, 1e-4,
    ),
    "resnet18": Recording(
        ("layer1.0.conv1", "layer2.0.downsample.0", "layer2.0.conv1", "layer2.0.conv2", "layer3.0.downsample.0",
         "layer3.0.conv1", "layer3.0.conv2", "layer4.0.downsample.0", "layer4.0.conv1", "layer4.0.conv2"), 4, 3,
    ),
}  # fmt: skip


def command(network: str, path: Path, store: Path, quick: bool) -> list[str]:
    """The ``lamina sparsity`` of a recording."""
    one = RECORDINGS[network]
    every, batch = (1, 4) if quick else (one.iterations, one.batch)
    layers = [word for layer in one.layers for word in ("--mask-layer", layer)]
    return [
        "sparsity", network, "--data", "fashion-mnist", "--batch-size", str(batch),
        "--iterations", str(2 if quick else one.epochs * every), "--optimizer", "adamw", "--lr", str(one.learning_rate),
        "--masks", str(path), "--mask-every", str(every), "--mask-images", str(one.images), *layers,
        "--store", str(store),
    ]  # fmt: skip


def main(words: list[str] | None = None) -> None:
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("networks", nargs="*", choices=[*RECORDINGS, []], help="by default all")
    asked.add_argument("--quick", action="store_true", help="two iterations of four images")
    asked.add_argument("--folder", type=Path, help="where the files go; by default the package, or one for --quick")
    args = asked.parse_args(words)
    scratch = Path(tempfile.gettempdir()) / "lamina_record_masks"
    folder = args.folder or (scratch if args.quick else SHIPPED)
    for each in (scratch, folder):
        each.mkdir(parents=True, exist_ok=True)
    source.commit()  # before anything trains: it refuses what git does not know
    for network in args.networks or RECORDINGS:
        path = folder / f"{network}.npz"
        if path.exists():
            print(f"{path} is there", flush=True)
            continue
        run = command(network, path, scratch / "record_masks.db", args.quick)
        print("lamina", *run, flush=True)
        subprocess.run([sys.executable, "-m", "lamina", *run], check=True)


if __name__ == "__main__":
    main()
