"""The networks of whole steps, and what the user of each could run in its place without any method."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.never_slower import NETWORKS, Network
from lamina import pipeline
from lamina.build.models import ZOO
from lamina.build.models.tdnn import TDNN


class Mlp(Network):
    """Four linear layers between 1,024 and 4,096 features, with ReLU."""

    def build(self) -> nn.Module:
        layers: list[nn.Module] = []
        for i in range(4):
            layers += [nn.Linear(*((1024, 4096) if i % 2 == 0 else (4096, 1024))), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def example(self, device: torch.device) -> Tensor:
        return torch.randn(self.batch, 1024, device=device)


class TorchvisionViT(Network):
    """ViT-B/16 as torchvision writes it: the projections of its attention are no layers but weights."""

    def build(self) -> nn.Module:
        target, _ = pipeline.find("torchvision:vit_b_16")
        model: Any = target.make(None)
        nn.init.normal_(model.heads.head.weight, std=0.02)  # zeros otherwise, and so would all gradients be
        return model  # type: ignore[no-any-return]

    def example(self, device: torch.device) -> Tensor:
        return torch.randn(self.batch, 3, 224, 224, device=device)


class TransformersGPT2(Network):
    """GPT-2 as Transformers writes it, on 512 tokens: its linear layers are of a class of their own."""

    def build(self) -> nn.Module:
        target, _ = pipeline.find("transformers:GPT2LMHeadModel")
        model: Any = target.make(None)
        model.config.use_cache = False
        return model  # type: ignore[no-any-return]

    def example(self, device: torch.device) -> Tensor:
        return torch.randint(50257, (self.batch, 512), device=device)


ALL: tuple[Network, ...] = (
    Mlp("mlp", 2048),
    *NETWORKS,
    Network("resnet18", 64),
    Network("tdnn", 128),
    TorchvisionViT("vit_b_16", 32),
    TransformersGPT2("gpt2", 4),
)
LONGEST = ("resnet50", "gpt2", "vit_base", "vit_b_16", "vgg16", "resnet18", "tdnn")
"""Networks that take long to compile: they begin first."""
SMOKE = (Network("lenet5", 4), Network("tdnn", 2, (("width", 64),)))


@dataclass(frozen=True)
class Dense:
    """A network without any method, as its user could run it."""

    impl: str
    layout: str
    model: nn.Module
    x: Tensor


def dense_networks(network: Network, precision: str, device: torch.device, training: bool) -> list[Dense]:
    """The network with its input; and where its layers can be written in other layouts, each of these too.

    In training bf16 is for autocast. For inference it is the type of weights and inputs.
    """
    torch.manual_seed(0)
    with device:  # initial weights take seconds on a CPU
        model = network.build().train(training)
    x = network.example(device)
    if precision == "bf16" and not training:
        model = model.to(torch.bfloat16)
        x = x.to(torch.bfloat16) if x.is_floating_point() else x
    if isinstance(model, TDNN):
        rows = Conv2dTDNN(model)
        last: Any = copy.deepcopy(rows)
        last.layout = torch.channels_last
        return [
            Dense("dense[layers=Conv1d]", "nchw", model, x),
            Dense("dense[layers=Conv2d]", "nchw", rows, x),
            Dense("dense[layers=Conv2d,layout=nhwc]", "nhwc", last.to(memory_format=torch.channels_last), x),
        ]
    if network.name in ZOO and ZOO[network.name].kind == "image" and precision != "fp32":
        last = model
        model, x = last.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        return [Dense("dense", "nhwc", model, x)]
    return [Dense("dense", "nchw", model, x)]


class Conv2dTDNN(nn.Module):
    """A TDNN with the same weights, whose convolutions are two-dimensional over images of one row."""

    def __init__(self, dense: TDNN):
        super().__init__()
        self.pooled = dense.pooled
        self.features = nn.Sequential(*map(_over_rows, dense.features))
        self.classifier = _over_rows(dense.classifier)
        self.layout = torch.contiguous_format

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(1, 2).unsqueeze(2).contiguous(memory_format=self.layout)
        logits: Tensor = self.classifier(self.features(rows)).squeeze(2)
        return logits.mean(dim=2) if self.pooled else logits.transpose(1, 2)


def _over_rows(layer: nn.Module) -> nn.Module:
    new: Any
    if isinstance(layer, nn.Conv1d):
        (kernel,), (dilation,) = layer.kernel_size, layer.dilation
        weight = layer.weight
        new = nn.Conv2d(
            layer.in_channels, layer.out_channels, (1, kernel), dilation=(1, dilation), bias=layer.bias is not None,
            device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        state = {name: one.unsqueeze(2) if name == "weight" else one for name, one in layer.state_dict().items()}
    elif isinstance(layer, nn.BatchNorm1d):
        new = nn.BatchNorm2d(layer.num_features, device=layer.weight.device, dtype=layer.weight.dtype)
        state = layer.state_dict()
    else:
        return copy.deepcopy(layer)
    new.load_state_dict(state)
    return new.train(layer.training)  # type: ignore[no-any-return]
