"""`torch.nn.MultiheadAttention` with its projections as layers, which methods can replace.

PyTorch's module holds the weights of its projections and computes with them itself. `UnpackedAttention` calls layers:
``in_proj``, which projects queries, keys and values at once, or ``q_proj``, ``k_proj`` and ``v_proj`` where these
differ in size or read a decoder's memory; and ``out_proj``.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CROSS = re.compile(r"cross|enc(oder)?_att")
"""What names of attention to a memory have in them."""

JOINT, SEPARATE, OUT = "in_proj", ("q_proj", "k_proj", "v_proj"), "out_proj"


class _NoFastPath(Tensor):
    """A tensor whose type keeps PyTorch's encoders from computing with the weights of their layers themselves."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class UnpackedAttention(nn.Module):
    """What a `torch.nn.MultiheadAttention` computes, by layers that are called.

    The arguments and the results are those of `torch.nn.MultiheadAttention.forward`. The layers share the parameters of
    the module that it is made of, but for those of separate projections that one parameter holds.

    Args:
        attention: of which `refusal` says nothing.
        joint: whether one layer projects queries, keys and values.
    """

    _qkv_same_embed_dim = False

    def __init__(self, attention: nn.MultiheadAttention, joint: bool) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = attention.embed_dim, attention.num_heads, attention.dropout
        self.batch_first = attention.batch_first
        self.joint = joint
        bias = attention.in_proj_bias
        if joint:
            setattr(self, JOINT, linear_of(attention.in_proj_weight, bias))
        else:
            weights = _separate(attention)
            biases = (None,) * 3 if bias is None else map(_parameter, bias.chunk(3))
            for name, weight, one in zip(SEPARATE, weights, biases, strict=True):
                setattr(self, name, linear_of(weight, one))
        setattr(self, OUT, linear_of(attention.out_proj.weight, attention.out_proj.bias))

    @property
    def in_proj_weight(self) -> Any:
        """The weight of the joint projection, which code around `torch.nn.MultiheadAttention` may read."""
        return getattr(self, JOINT).weight

    @property
    def in_proj_bias(self) -> Any:
        """Likewise the bias."""
        bias = getattr(self, JOINT if self.joint else SEPARATE[0]).bias
        return bias if bias is None or torch.compiler.is_compiling() else bias.as_subclass(_NoFastPath)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of ``query: (N, L, E)`` to ``key: (N, S, E)`` and ``value: (N, S, E)``.

        ``(L, N, E)`` without ``batch_first``, ``(L, E)`` without a batch.

        Returns:
            ``(N, L, E)``, and with ``need_weights`` the attention weights: ``(N, L, S)``, or ``(N, heads, L, S)`` of
            each head.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.dim() == 3
        first = self.batch_first or not batched
        q, k, v = (self._heads(one if batched else one.unsqueeze(0), first) for one in self._project(query, key, value))
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = None if causal else _merged(attn_mask, key_padding_mask, q, k.shape[2])
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
            every = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            y = every @ v
            weights = every.mean(1) if average_attn_weights else every
            weights = weights if batched else weights.squeeze(0)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
        y = (y.transpose(1, 2) if first else y.permute(2, 0, 1, 3)).flatten(-2)
        return getattr(self, OUT)(y if batched else y.squeeze(0)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if not self.joint:
            return tuple(getattr(self, name)(one) for name, one in zip(SEPARATE, (query, key, value), strict=True))
        layer = getattr(self, JOINT)
        q, k, v = layer(query).chunk(3, -1)
        if key is not query:
            _, k, v = layer(key).chunk(3, -1)
        if value is not key:
            v = layer(value).chunk(3, -1)[2]
        return q, k, v

    def _heads(self, x: Tensor, first: bool) -> Tensor:
        """``(N, heads, length, E / heads)``."""
        x = x.unflatten(-1, (self.num_heads, -1))
        return x.transpose(1, 2) if first else x.permute(1, 2, 0, 3)


def refusal(attention: nn.MultiheadAttention) -> str | None:
    """Why a `torch.nn.MultiheadAttention` is not unpacked, or nothing."""
    if type(attention) is not nn.MultiheadAttention or type(attention.out_proj).__base__ is not nn.Linear:
        return "a class of its own may compute something else"
    if attention.bias_k is not None or attention.add_zero_attn:
        return "it adds keys and values of its own (add_bias_kv, add_zero_attn)"
    return None


def is_projection(name: str) -> bool:
    """Whether a layer has the name of a projection."""
    return name.rpartition(".")[2] in (JOINT, *SEPARATE, OUT)


def reads_memory(model: nn.Module, path: str) -> bool:
    """Whether attention reads the memory of a decoder, for its keys and values, but not for its queries.

    By its name: a joint projection would project memory to queries too. `torch.nn.TransformerDecoderLayer` and the
    decoders of DETR name it ``multihead_attn``, beside ``self_attn``.
    """
    parent, _, name = path.rpartition(".")
    if name == "multihead_attn":
        return hasattr(model.get_submodule(parent), "self_attn")
    return CROSS.search(name.lower()) is not None


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer of parameters that are there."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    layer.weight = weight
    layer.bias = bias  # type: ignore[assignment]
    return layer


def _separate(attention: nn.MultiheadAttention) -> tuple[nn.Parameter, ...]:
    """The weights of queries, keys and values."""
    if attention._qkv_same_embed_dim:
        return tuple(map(_parameter, attention.in_proj_weight.chunk(3)))
    return attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight


def _parameter(part: Tensor) -> nn.Parameter:
    return nn.Parameter(part.detach().clone(), part.requires_grad)


def _merged(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, length: int) -> Tensor | None:
    """What is added to the scores ``(N, heads, L, S)``: masks are added, or where they are true, minus infinity is."""
    masks = []
    if attn_mask is not None:
        masks.append(attn_mask.reshape(-1, q.shape[1], *attn_mask.shape[1:]) if attn_mask.dim() == 3 else attn_mask)
    if key_padding_mask is not None:
        masks.append(key_padding_mask.reshape(-1, 1, 1, length))
    merged = None
    for mask in masks:
        hides = mask.dtype == torch.bool
        added = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -torch.inf) if hides else mask.to(q.dtype)
        merged = added if merged is None else merged + added
    return merged
