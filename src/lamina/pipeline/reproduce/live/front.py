"""Accuracy of a trained network after elimination without retraining, by keep ratio."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
import torch.nn.functional as F

from lamina.accelerate import convert
from lamina.accelerate.methods.elimination import Eliminated
from lamina.build.data import loader, train_test
from lamina.build.models import create
from lamina.pipeline.reproduce.measured.judging import Rows, Scope

KEEPS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)
TRAINED, TESTED = 3000, 1000
SHAPE = (1, 28, 28)


def front(scope: Scope) -> Rows:
    """Figures 14 and 15: LeNet-5 on Fashion-MNIST. The first layer stays dense."""
    train, test = train_test("fashion-mnist")
    train, test = (
        replace(train, x=train.x[:TRAINED], y=train.y[:TRAINED]),
        replace(test, x=test.x[:TESTED], y=test.y[:TESTED]),
    )
    torch.manual_seed(0)
    network = create("lenet5", len(train.classes)).to(scope.device)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for epoch in range(4 if scope.quick else 20):
        for x, y in loader(train, SHAPE, 64, 0, epoch):
            optimizer.zero_grad()
            F.cross_entropy(network(x.to(scope.device)), y.to(scope.device)).backward()
            optimizer.step()
    network.eval()
    x, y = next(iter(loader(test, SHAPE, TESTED, 0, 0, shuffle=False)))
    x, y = x.to(scope.device), y.to(scope.device)
    first = next(path for path, one in network.named_modules() if isinstance(one, torch.nn.Conv2d))
    rows, work = list[dict[str, float]](), {}
    for keep in KEEPS:
        one = copy.deepcopy(network)
        if keep < 1:
            config = Eliminated(keep=keep, impl="gather")
            one, _ = convert(one, config, where=lambda path, _: path != first)
        work[keep] = sum(weight.numel() for weight in one.parameters() if weight.dim() > 1)
        with torch.no_grad():
            accuracy = float((one(x).argmax(1) == y).float().mean())
        rows.append({"keep": keep, "accuracy": accuracy, "reduction": work[1.0] / work[keep]})
    return rows
