import pytest
import torch

from lamina.build.models.transformer import Attention, Block
from lamina.errors import UsageError


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_its_equation(causal: bool) -> None:
    """Vaswani et al. 2017, eq. 1, one head at a time."""
    attention = Attention(width=12, heads=3, causal=causal).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    q, k, v = attention.qkv(x).chunk(3, dim=2)
    heads = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / 4**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        heads.append(scores.softmax(2) @ v[..., part])
    torch.testing.assert_close(attention(x), attention.proj(torch.cat(heads, dim=2)))


def test_a_block_is_residual() -> None:
    block = Block(width=8, heads=2)
    for module in (block.attn.proj, block.mlp.fc2):
        torch.nn.init.zeros_(module.weight)
        torch.nn.init.zeros_(module.bias)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(block(x), x)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UsageError, match="expected a width divisible by 3 heads, got 8"):
        Attention(width=8, heads=3, causal=False)
