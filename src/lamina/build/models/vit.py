"""Vision Transformer (Dosovitskiy et al. 2021; the tiny one Touvron et al. 2021), with timm's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lamina.build.models.transformer import Block, initialise


class PatchEmbed(nn.Module):
    """``x: (N, 3, H, W)`` to one vector for each patch, ``(N, H*W / patch^2, width)``."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.proj(x)
        return patches.flatten(2).transpose(1, 2)


class ViT(nn.Module):
    """``x: (N, 3, image, image)`` to ``(N, classes)``, computed from the class token."""

    def __init__(self, num_classes: int, image: int, patch: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(patch, width)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + (image // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, eps=1e-6) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)
        self.apply(initialise)
        nn.init.normal_(self.cls_token, std=0.02)
        nn.init.normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.norm(self.blocks(x + self.pos_embed))
        logits: Tensor = self.head(x[:, 0])
        return logits


def vit_tiny(num_classes: int = 1000, image: int = 224, patch: int = 16) -> nn.Module:
    """ViT-Ti/16 as timm's ``vit_tiny_patch16_224``: 5,717,416 parameters."""
    return ViT(num_classes, image, patch, width=192, heads=3, depth=12)


def vit_base(num_classes: int = 1000, image: int = 224, patch: int = 16) -> nn.Module:
    """ViT-B/16 as timm's ``vit_base_patch16_224``: 86,567,656 parameters."""
    return ViT(num_classes, image, patch, width=768, heads=12, depth=12)
