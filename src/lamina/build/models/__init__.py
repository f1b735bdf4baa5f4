"""The zoo: the networks lamina ships, one family a file, by name. ``external`` loads everyone else's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from lamina.build.data.dataset import Kind
from lamina.build.models import alexnet, cifarnet, conv4fc3, gpt, lenet, lstm, resnet, tdnn, vgg, vit
from lamina.errors import UsageError, nearest

__all__ = ["ZOO", "Entry", "create", "entries", "find"]


@dataclass(frozen=True)
class Entry:
    """A network of the zoo. ``input`` is one sample's shape; for tokens ``classes`` is the vocabulary."""

    name: str
    factory: Callable[..., nn.Module]
    input: tuple[int, ...]
    classes: int
    kind: Kind
    summary: str
    source: str


_KRIZHEVSKY_2012 = "Krizhevsky, Sutskever, Hinton, NIPS 2012"
_SIMONYAN = "Simonyan, Zisserman, ICLR 2015, arXiv:1409.1556"
_HE = "He, Zhang, Ren, Sun, CVPR 2016, arXiv:1512.03385"
_RADFORD = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
_DISSERTATION = "Exploring High Performance Deep Neural Networks on GPUs, 2020"
_IMAGENET = (3, 224, 224)
_CIFAR = (3, 32, 32)
_SPEECH = (100, 40)

_ENTRIES: tuple[Entry, ...] = (
    Entry("lenet5", lenet.lenet5, (1, 28, 28), 10, "image",
          "LeNet-5 with ReLU and max pooling", "LeCun, Bottou, Bengio, Haffner, Proc. IEEE 1998"),
    Entry("cifarnet", cifarnet.cifarnet, _CIFAR, 10, "image",
          "Caffe's cifar10_full: 3 convolutions with LRN, 1 linear layer",
          "Jia et al., ACM MM 2014, arXiv:1408.5093"),
    Entry("cifarnet64", cifarnet.cifarnet64, _CIFAR, 10, "image",
          "TensorFlow's CIFAR-10 tutorial: 2 convolutions with LRN, 3 linear layers",
          "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"),
    Entry("conv4fc3", conv4fc3.conv4fc3, _CIFAR, 10, "image",
          "4 convolutions and 3 linear layers, widths multiples of 64", f"{_DISSERTATION}, 7.5.3"),
    Entry("alexnet", alexnet.alexnet, _IMAGENET, 1000, "image",
          "AlexNet in one tower, as in torchvision", "Krizhevsky 2014, arXiv:1404.5997"),
    Entry("alexnet2012", alexnet.alexnet2012, (3, 227, 227), 1000, "image",
          "AlexNet as published, with LRN; option groups=2 for its two towers", _KRIZHEVSKY_2012),
    Entry("vgg11", vgg.vgg11, _IMAGENET, 1000, "image", "VGG of 8 convolutions (A)", _SIMONYAN),
    Entry("vgg13", vgg.vgg13, _IMAGENET, 1000, "image", "VGG of 10 convolutions (B)", _SIMONYAN),
    Entry("vgg16", vgg.vgg16, _IMAGENET, 1000, "image", "VGG of 13 convolutions (D)", _SIMONYAN),
    Entry("vgg19", vgg.vgg19, _IMAGENET, 1000, "image", "VGG of 16 convolutions (E)", _SIMONYAN),
    Entry("vgg11_cifar", vgg.vgg11_cifar, _CIFAR, 10, "image", "VGG-11 for small images", _SIMONYAN),
    Entry("resnet10", resnet.resnet10, _IMAGENET, 1000, "image", "ResNet of 4 basic blocks", _HE),
    Entry("resnet18", resnet.resnet18, _IMAGENET, 1000, "image", "ResNet of 8 basic blocks", _HE),
    Entry("resnet34", resnet.resnet34, _IMAGENET, 1000, "image", "ResNet of 16 basic blocks", _HE),
    Entry("resnet50", resnet.resnet50, _IMAGENET, 1000, "image", "ResNet of 16 bottlenecks (v1.5)", _HE),
    Entry("resnet101", resnet.resnet101, _IMAGENET, 1000, "image", "ResNet of 33 bottlenecks (v1.5)", _HE),
    Entry("resnet152", resnet.resnet152, _IMAGENET, 1000, "image", "ResNet of 50 bottlenecks (v1.5)", _HE),
    Entry("resnet10_cifar", resnet.resnet10_cifar, _CIFAR, 10, "image", "ResNet-10 for small images", _HE),
    Entry("resnet18_cifar", resnet.resnet18_cifar, _CIFAR, 10, "image", "ResNet-18 for small images", _HE),
    Entry("vit_tiny", vit.vit_tiny, _IMAGENET, 1000, "image",
          "ViT-Ti/16: 12 blocks of 192", "Touvron et al., ICML 2021, arXiv:2012.12877"),
    Entry("vit_base", vit.vit_base, _IMAGENET, 1000, "image",
          "ViT-B/16: 12 blocks of 768", "Dosovitskiy et al., ICLR 2021, arXiv:2010.11929"),
    Entry("tdnn", tdnn.tdnn, _SPEECH, 10, "frames",
          "time-delay acoustic model, 5 dilated convolutions over 23 frames",
          "Peddinti, Povey, Khudanpur, Interspeech 2015"),
    Entry("lstm", lstm.lstm, _SPEECH, 10, "frames",
          "LSTM acoustic model, 2 levels of 512", "Graves, Mohamed, Hinton, ICASSP 2013, arXiv:1303.5778"),
    Entry("gpt", gpt.gpt, (256,), 256, "tokens", "small GPT over bytes: 6 blocks of 384", _RADFORD),
    Entry("gpt2_block", gpt.gpt2_block, (1024,), 256, "tokens", "one block of GPT-2, 768 wide, over bytes", _RADFORD),
    Entry("gpt2", gpt.gpt2, (1024,), 50257, "tokens", "smallest GPT-2: 12 blocks of 768", _RADFORD),
)  # fmt: skip

ZOO: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""Every network by name, in the order of this file."""


def entries() -> tuple[Entry, ...]:
    """Every network of the zoo."""
    return _ENTRIES


def find(name: str) -> Entry:
    """The entry called ``name``.

    Raises:
        UsageError: no such network.
    """
    if name not in ZOO:
        raise UsageError(f"no network is called {name!r} in the zoo: {nearest(name, ZOO)}")
    return ZOO[name]


def create(name: str, num_classes: int | None = None, **options: int) -> nn.Module:
    """The network called ``name``, freshly initialised, for ``num_classes`` (its own number if not given).

    ``options`` are the factory's further parameters, such as ``groups=2`` of ``alexnet2012``.

    Raises:
        UsageError: no such network, no such option, or a value the network cannot be built with.
    """
    entry = find(name)
    classes = entry.classes if num_classes is None else num_classes
    if classes < 1:
        raise UsageError(f"{name}: expected num_classes of at least 1, got {classes}")
    known = set(inspect.signature(entry.factory).parameters) - {"num_classes"}
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "it has no options"
            raise UsageError(f"{name} has no option {option!r}: {hint}")
    try:
        return entry.factory(classes, **options)
    except (UsageError, ValueError, RuntimeError) as error:
        given = ", ".join(f"{key}={value}" for key, value in options.items())
        raise UsageError(f"{name} cannot be built with {given or f'{classes} classes'}: {error}") from error
