"""The registry: every network by name, and what a wrong name or option is told."""

import pytest
import torch
from torch import nn

from lamina.build.models import ZOO, Entry, create, entries, find
from lamina.errors import UsageError


def example(entry: Entry, batch: int) -> torch.Tensor:
    """Random input, on the default device."""
    if entry.kind == "tokens":
        return torch.randint(0, entry.classes, (batch, *entry.input))
    return torch.randn(batch, *entry.input)


@pytest.mark.parametrize("name", ZOO)
def test_every_network_maps_its_declared_input_to_its_classes(name: str) -> None:
    entry = find(name)
    with torch.device("meta"):
        output = create(name)(example(entry, 2))
    steps = entry.input if entry.kind == "tokens" else ()
    assert output.shape == (2, *steps, entry.classes)


@pytest.mark.parametrize("name", [name for name in ZOO if find(name).kind != "tokens"])
def test_every_classifier_takes_another_number_of_classes(name: str) -> None:
    with torch.device("meta"):
        assert create(name, num_classes=7)(example(find(name), 2)).shape == (2, 7)


@pytest.mark.parametrize("name", ["lenet5", "cifarnet", "cifarnet64", "conv4fc3", "resnet10_cifar", "tdnn", "lstm"])
def test_small_classifiers_train(name: str) -> None:
    options = {"width": 16} if name in ("tdnn", "lstm") else {}
    assert_every_parameter_gets_a_gradient(create(name, **options), example(find(name), 2))


def test_small_transformers_train() -> None:
    tokens = torch.randint(0, 11, (2, 5))
    options = {"context": 8, "width": 16, "heads": 2, "depth": 2}
    assert_every_parameter_gets_a_gradient(create("gpt", num_classes=11, **options), tokens, unread={"position.weight"})
    assert_every_parameter_gets_a_gradient(create("vit_tiny", num_classes=3, image=32), torch.randn(2, 3, 32, 32))


def assert_every_parameter_gets_a_gradient(
    model: nn.Module, x: torch.Tensor, unread: frozenset[str] | set[str] = frozenset()
) -> None:
    output = model(x)
    target = torch.zeros(output.shape[:-1], dtype=torch.int64)
    nn.functional.cross_entropy(output.flatten(0, -2), target.flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert name in unread or parameter.grad.any(), name


def test_entries_are_the_zoo() -> None:
    assert {entry.name: entry for entry in entries()} == ZOO
    assert all(entry.summary and entry.source for entry in entries())
    assert {entry.kind for entry in entries()} == {"image", "frames", "tokens"}


def test_options_reach_the_factory() -> None:
    with torch.device("meta"):
        widths = [create("lstm", width=width).state_dict()["classifier.weight"].shape for width in (64, 128)]
    assert widths == [(10, 64), (10, 128)]


def test_an_unknown_name_comes_with_the_closest_match() -> None:
    with pytest.raises(UsageError, match="'resnt50' in the zoo: did you mean 'resnet50'"):
        create("resnt50")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("alexnet2012", {"group": 2}, "no option 'group': did you mean 'groups'"),
        ("vgg16", {"groups": 2}, "no option 'groups': it has no options"),
        ("alexnet2012", {"groups": 5}, "alexnet2012 cannot be built with groups=5"),
        (
            "gpt",
            {"heads": 5},
            "gpt cannot be built with heads=5: expected a width divisible by 5 heads, got 384",
        ),
        ("lenet5", {"num_classes": 0}, "num_classes of at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_explained(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message), torch.device("meta"):
        create(name, **options)
