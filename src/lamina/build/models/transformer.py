"""The pre-norm transformer block that GPT and ViT stack (Vaswani et al. 2017; Xiong et al. 2020)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lamina.errors import UsageError


class Attention(nn.Module):
    """Multi-head self-attention. ``x: (N, T, width)`` to the same shape."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"expected a width divisible by {heads} heads, got {width}")
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (3, N, heads, T, d)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two linear layers with GELU between, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``. ``x: (N, T, width)``."""

    def __init__(self, width: int, heads: int, causal: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


def initialise(module: nn.Module) -> None:
    """For ``apply``: linear and embedding weights from N(0, 0.02), biases zero (Radford et al. 2019)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
