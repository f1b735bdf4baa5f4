"""Inputs of torchvision's detectors, with small stand-ins."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.build import from_external
from lamina.build.models import detection
from lamina.build.models.external import External


class GeneralizedRCNNTransform(nn.Module):
    def __init__(self, min_size: tuple[int, ...], max_size: int, fixed_size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.min_size, self.max_size, self.fixed_size = min_size, max_size, fixed_size


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transform = GeneralizedRCNNTransform((8, 12), 10)
        self.body = nn.Conv2d(3, 2, 1)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> dict[str, Tensor]:
        assert targets is not None and {"boxes", "labels"} <= targets[0].keys()
        return {"loss": self.body(torch.stack(images)).mean() * targets[0]["boxes"].mean()}


@pytest.mark.parametrize(
    ("settings", "shape"),
    [(((800,), 1333), (3, 800, 800)), (((640, 800), 700), (3, 700, 700)), (((8,), 9, (30, 20)), (3, 20, 30))],
)
def test_images_have_the_size_that_the_detector_resizes_to(settings: Any, shape: tuple[int, ...]) -> None:
    module = SimpleNamespace(transform=GeneralizedRCNNTransform(*settings))
    assert detection.is_detector(module) and detection.image_shape(module) == shape
    assert not detection.is_detector(nn.Identity())


def test_objects_lie_within_their_images() -> None:
    images, targets = detection.samples(3, (3, 20, 40))
    assert len(images) == len(targets) == 3 and images[0].shape == (3, 20, 40)
    boxes, points = targets[0]["boxes"], targets[0]["keypoints"]
    assert (boxes[:, :2] < boxes[:, 2:]).all() and (boxes <= torch.tensor([40, 20, 40, 20])).all()
    assert points.shape == (2, 17, 3) and (points[..., 0] < 40).all() and (points[..., 1] < 20).all()
    assert targets[0]["masks"].shape == (2, 20, 40)


@pytest.mark.parametrize(("shape", "image"), [(None, (3, 10, 10)), ((3, 6, 7), (3, 6, 7))])
def test_a_detector_needs_no_function_for_its_inputs(shape: Any, image: tuple[int, ...]) -> None:
    def load() -> External:
        module = Detector()
        return External(module, detection.image_shape(module), samples=detection.samples)

    target = from_external("detector", load, shape)
    tensors, _, _ = target.example(2, None, "fp32", torch.device("cpu"), "nchw", 0)
    assert tensors[0].shape == image
    assert target.make(None)(*tensors)["loss"].isfinite()
    assert "body" in {layer.name for layer in target.resolve(2)}
