import pytest
import torch

from lamina.build.models import create
from lamina.build.models.vit import PatchEmbed


@pytest.mark.parametrize(("name", "expected"), [("vit_tiny", 5_717_416), ("vit_base", 86_567_656)])
def test_parameters_are_timms(name: str, expected: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in create(name).parameters()) == expected


def test_names_are_timms() -> None:
    with torch.device("meta"):
        names = list(create("vit_tiny").state_dict())
    block = [
        f"blocks.0.{layer}.{kind}"
        for layer in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    ]
    assert names[:16] == [
        "cls_token",
        "pos_embed",
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
        *block,
    ]
    assert names[-4:] == ["norm.weight", "norm.bias", "head.weight", "head.bias"]


def test_patches_are_cut_row_by_row() -> None:
    embed = PatchEmbed(patch=2, width=5)
    x = torch.randn(1, 3, 4, 6)
    patch = x[0, :, 2:4, 0:2].flatten()  # the second row's first patch is the fourth of six
    expected = embed.proj.weight.flatten(1) @ patch + embed.proj.bias
    torch.testing.assert_close(embed(x)[0, 3], expected)


def test_the_class_token_reads_every_patch() -> None:
    model = create("vit_tiny", num_classes=3, image=32)
    x = torch.randn(1, 3, 32, 32, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().amax(1) > 0).all()
