"""The rules against what plain descent on the dense matrix does, projected back onto circulant blocks."""

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear, BlockCirculantLSTM
from lamina.accelerate.methods.circulant.parameter_groups import parameter_groups
from lamina.errors import UsageError


def test_gradient_descent_moves_the_dense_matrix_alike() -> None:
    layer = BlockCirculantLinear(8, 8, 4, bias=False).double()
    dense = layer.to_dense()
    x, target = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    ours = torch.optim.SGD(parameter_groups(layer, lr=0.1, weight_decay=0.01))
    theirs = torch.optim.SGD(dense.parameters(), lr=0.1, weight_decay=0.01)
    for model, optimizer in ((layer, ours), (dense, theirs)):
        (model(x) - target).square().sum().backward()
        optimizer.step()
    projected = BlockCirculantLinear.from_dense(dense, 4)
    torch.testing.assert_close(layer.weight, projected.weight)


RULES = [("sgd", 0.1 / 4, 0.8), ("adam", 0.1 * 2**0.5, 0.8), ("adamw", 0.1 * 2**0.5, 0.2 / 2**0.5)]


@pytest.mark.parametrize(("optimizer", "lr", "decay"), RULES)
def test_rules_of_each_optimizer(optimizer: str, lr: float, decay: float) -> None:
    model = nn.Sequential(nn.Linear(3, 8), BlockCirculantLinear(8, 8, 4), BlockCirculantLSTM(8, 8, block_size=2))
    groups = parameter_groups(model, lr=0.1, weight_decay=0.2, optimizer=optimizer)  # type: ignore[arg-type]
    named = {group["name"]: group for group in groups}
    assert [*named] == ["dense", "circulant[block_size=4]", "circulant[block_size=2]"]
    four = named["circulant[block_size=4]"]
    assert (four["lr"], four["weight_decay"]) == pytest.approx((lr, decay))
    assert (named["dense"]["lr"], named["dense"]["weight_decay"]) == (0.1, 0.2)
    assert [p.shape for p in four["params"]] == [(2, 2, 4)]
    assert len(named["circulant[block_size=2]"]["params"]) == 2  # its biases are dense
    assert sum(len(group["params"]) for group in groups) == len([*model.parameters()])


def test_unknown_optimizer() -> None:
    with pytest.raises(UsageError, match="got 'lion'"):
        parameter_groups(nn.Linear(2, 2), lr=1, optimizer="lion")  # type: ignore[arg-type]
