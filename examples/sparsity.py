"""Train a small network, monitor its zeros, and compress its saved activations.

Run: python examples/sparsity.py
"""

import torch
import torch.nn.functional as F
from torch import nn

from lamina.accelerate.training.compressed_activations import compressed_activations
from lamina.accelerate.training.sparsity_monitor import Monitor


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    labels = torch.arange(64) % 4
    images = 0.3 * torch.randn(64, 1, 16, 16)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 4 * label : 4 * label + 4] += 1

    with Monitor(model, exhaustive=True) as monitor:
        for _ in range(20):
            with compressed_activations("bitmap") as saved:
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    for name in ("1", "3"):
        observed = [one for one in monitor.observations if one.name == name]
        last = observed[-1]
        print(f"map {name}: {observed[0].sparsity:.0%} zeros at first, {last.sparsity:.0%} at last")
        print(f"  rows of 64 neighbours with any non-zero: {last.union_density[64]:.0%}")
    held = saved.held
    print(f"saved maps: {held.held_bytes} bytes in place of {held.dense_bytes}, kept as {held.tensors}")


if __name__ == "__main__":
    main()
