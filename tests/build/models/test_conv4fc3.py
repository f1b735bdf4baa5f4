from torch import nn

from lamina.build.models import create


def test_it_has_four_convolutions_and_three_linear_layers() -> None:
    modules = list(create("conv4fc3").modules())
    assert sum(isinstance(module, nn.Conv2d) for module in modules) == 4
    assert sum(isinstance(module, nn.Linear) for module in modules) == 3


def test_blocks_of_64_divide_every_inner_layer() -> None:
    weights = [p.shape[:2] for p in create("conv4fc3").parameters() if p.ndim > 1]
    assert all(size % 64 == 0 for shape in weights[1:-1] for size in shape)
