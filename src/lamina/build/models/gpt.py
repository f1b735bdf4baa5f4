"""A decoder-only language model (Radford et al. 2019): pre-norm, causal attention, learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lamina.build.models.transformer import Block, initialise


class GPT(nn.Module):
    """``tokens: (N, T)`` of int64 below ``vocabulary``, ``T <= context``, to logits ``(N, T, vocabulary)``.

    The head has weights of its own (not tied to the embedding).
    """

    positions: Tensor

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("positions", torch.arange(context), persistent=False)
        nn.init.normal_(self.head.weight, std=0.02)
        for part in (self.token, self.position, self.blocks):
            part.apply(initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(self.positions[: tokens.shape[1]])
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def gpt(num_classes: int = 256, context: int = 256, width: int = 384, heads: int = 6, depth: int = 6) -> nn.Module:
    """A small GPT over bytes: 10.9 M parameters. ``num_classes`` is the vocabulary."""
    return GPT(num_classes, context, width, heads, depth)


def gpt2(num_classes: int = 50257) -> nn.Module:
    """The smallest GPT-2, head untied: 12 blocks of 768, 1024 tokens. ``num_classes`` is the vocabulary."""
    return GPT(num_classes, context=1024, width=768, heads=12, depth=12)


def gpt2_block(num_classes: int = 256) -> nn.Module:
    """One block of the smallest GPT-2 between a small embedding and head. ``num_classes`` is the vocabulary."""
    return GPT(num_classes, context=1024, width=768, heads=12, depth=1)
