"""Make a network block-circulant, train it, and turn it back into a dense one.

Run: python examples/circulant.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.accelerate.methods.circulant.parameter_groups import parameter_groups


def blobs(count: int) -> tuple[Tensor, Tensor]:
    """Noisy images with one bright quadrant each, and the index of that quadrant."""
    labels = torch.randint(4, (count,))
    images = 0.5 * torch.randn(count, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[0, top : top + 4, left : left + 4] += 1
    return images, labels


def main() -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip
    model, record = lamina.convert(model, lamina.Circulant(block_size=8, rescale=True))
    for layer in record.layers:
        result = layer.refusal or f"{layer.parameters_before} -> {layer.parameters_after} parameters"
        print(f"{layer.layer:>2} {layer.kind:10} {result}")

    optimizer = torch.optim.SGD(parameter_groups(model, lr=0.1, optimizer="sgd"), momentum=0.9)
    images, labels = blobs(256)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    images, labels = blobs(256)
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    print(f"accuracy on new images: {accuracy:.3f}")

    circulant = model[6]  # type: ignore[index]
    x = torch.ones(1, 64)
    difference = (circulant(x) - circulant.to_dense()(x)).abs().max().item()
    print(f"largest difference from the materialized dense layer: {difference:.1e}")


if __name__ == "__main__":
    main()
