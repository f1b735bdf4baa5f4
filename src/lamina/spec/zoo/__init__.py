"""The zoo: the networks that lamina ships, by name, and the layers of each. No torch here: `build.models` builds them.

``layers.json`` holds what tracing a network finds, so that layers and their costs can be listed without PyTorch.
``tools/describe_zoo.py`` generates it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from lamina.errors import UsageError, nearest
from lamina.spec.layers import KINDS, Opaque
from lamina.spec.network import Input, Network, ResolvedLayer
from lamina.spec.shape import Shape

DEFAULT_BATCH = 16
BATCH = -1
"""Stands for the batch size in a stored shape."""


@dataclass(frozen=True)
class Entry:
    """A network of the zoo. ``input`` is one sample's shape; for tokens ``classes`` is the vocabulary."""

    name: str
    input: Shape
    classes: int
    kind: Literal["image", "frames", "tokens"]
    summary: str
    source: str

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The network's only input."""
        if self.kind == "tokens":
            return (Input(shape=self.input, content="indices", vocabulary=self.classes),)
        return (Input(shape=self.input),)

    def resolve(self, batch: int | None = None) -> tuple[ResolvedLayer, ...]:
        """The layers with their shapes at a batch size, as tracing the network finds them."""
        size = batch or DEFAULT_BATCH
        layers = []
        for stored in _layers()[self.name]:
            fields = dict(stored)
            kind = fields.pop("type")
            if "shape" in fields:
                fields["shape"] = [size if extent == BATCH else extent for extent in fields["shape"]]
            layers.append((Opaque if kind == Opaque.kind else KINDS[kind]).model_validate(fields))
        return Network(name=self.name, inputs=self.inputs, layers=tuple(layers)).resolve(size)


_KRIZHEVSKY_2012 = "Krizhevsky, Sutskever, Hinton, NIPS 2012"
_SIMONYAN = "Simonyan, Zisserman, ICLR 2015, arXiv:1409.1556"
_HE = "He, Zhang, Ren, Sun, CVPR 2016, arXiv:1512.03385"
_RADFORD = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
_DISSERTATION = "Exploring High Performance Deep Neural Networks on GPUs, 2020"
_IMAGENET = (3, 224, 224)
_CIFAR = (3, 32, 32)
_SPEECH = (100, 40)

_ENTRIES: tuple[Entry, ...] = (
    Entry("lenet5", (1, 28, 28), 10, "image",
          "LeNet-5 with ReLU and max pooling", "LeCun, Bottou, Bengio, Haffner, Proc. IEEE 1998"),
    Entry("cifarnet", _CIFAR, 10, "image",
          "Caffe's cifar10_full: 3 convolutions with LRN, 1 linear layer",
          "Jia et al., ACM MM 2014, arXiv:1408.5093"),
    Entry("cifarnet64", _CIFAR, 10, "image",
          "TensorFlow's CIFAR-10 tutorial: 2 convolutions with LRN, 3 linear layers",
          "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"),
    Entry("conv4fc3", _CIFAR, 10, "image",
          "4 convolutions and 3 linear layers, widths multiples of 64", f"{_DISSERTATION}, 7.5.3"),
    Entry("alexnet", _IMAGENET, 1000, "image",
          "AlexNet in one tower, as in torchvision", "Krizhevsky 2014, arXiv:1404.5997"),
    Entry("alexnet2012", (3, 227, 227), 1000, "image",
          "AlexNet as published, with LRN; option groups=2 for its two towers", _KRIZHEVSKY_2012),
    Entry("vgg11", _IMAGENET, 1000, "image", "VGG of 8 convolutions (A)", _SIMONYAN),
    Entry("vgg13", _IMAGENET, 1000, "image", "VGG of 10 convolutions (B)", _SIMONYAN),
    Entry("vgg16", _IMAGENET, 1000, "image", "VGG of 13 convolutions (D)", _SIMONYAN),
    Entry("vgg19", _IMAGENET, 1000, "image", "VGG of 16 convolutions (E)", _SIMONYAN),
    Entry("vgg11_cifar", _CIFAR, 10, "image", "VGG-11 for small images", _SIMONYAN),
    Entry("vgg16_cifar", _CIFAR, 10, "image", "VGG-16 for small images", _SIMONYAN),
    Entry("resnet10", _IMAGENET, 1000, "image", "ResNet of 4 basic blocks", _HE),
    Entry("resnet18", _IMAGENET, 1000, "image", "ResNet of 8 basic blocks", _HE),
    Entry("resnet34", _IMAGENET, 1000, "image", "ResNet of 16 basic blocks", _HE),
    Entry("resnet50", _IMAGENET, 1000, "image", "ResNet of 16 bottlenecks (v1.5)", _HE),
    Entry("resnet101", _IMAGENET, 1000, "image", "ResNet of 33 bottlenecks (v1.5)", _HE),
    Entry("resnet152", _IMAGENET, 1000, "image", "ResNet of 50 bottlenecks (v1.5)", _HE),
    Entry("resnet10_cifar", _CIFAR, 10, "image", "ResNet-10 for small images", _HE),
    Entry("resnet18_cifar", _CIFAR, 10, "image", "ResNet-18 for small images", _HE),
    Entry("vit_tiny", _IMAGENET, 1000, "image",
          "ViT-Ti/16: 12 blocks of 192", "Touvron et al., ICML 2021, arXiv:2012.12877"),
    Entry("vit_base", _IMAGENET, 1000, "image",
          "ViT-B/16: 12 blocks of 768", "Dosovitskiy et al., ICLR 2021, arXiv:2010.11929"),
    Entry("tdnn", _SPEECH, 10, "frames",
          "time-delay acoustic model, 5 dilated convolutions over 23 frames",
          "Peddinti, Povey, Khudanpur, Interspeech 2015"),
    Entry("lstm", _SPEECH, 10, "frames",
          "LSTM acoustic model, 2 levels of 512", "Graves, Mohamed, Hinton, ICASSP 2013, arXiv:1303.5778"),
    Entry("gpt", (256,), 256, "tokens", "small GPT over bytes: 6 blocks of 384", _RADFORD),
    Entry("gpt2_block", (1024,), 256, "tokens", "one block of GPT-2, 768 wide, over bytes", _RADFORD),
    Entry("gpt2", (1024,), 50257, "tokens", "smallest GPT-2: 12 blocks of 768", _RADFORD),
)  # fmt: skip

ZOO: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""Every network by name, in the order of this file."""


def find(name: str) -> Entry:
    """The entry called ``name``.

    Raises:
        UsageError: no such network.
    """
    if name not in ZOO:
        raise UsageError(f"no network is called {name!r} in the zoo: {nearest(name, ZOO)}")
    return ZOO[name]


@cache
def _layers() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("layers.json").read_text("utf-8"))
    return found
