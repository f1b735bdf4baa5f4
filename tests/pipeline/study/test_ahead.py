"""Kernels of candidates are compiled before anything is timed."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from lamina.accelerate.runtime import compile_ahead
from lamina.accelerate.select import Cache, Selector, observe
from lamina.pipeline.study.ahead import compile_kernels
from lamina.pipeline.study.attempts import Attempt
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.observed import Observed
from lamina.record.study import Settings
from lamina.spec import Method


class Fatal:
    """Watches over everything, and leaves out what ended an earlier process."""

    def __init__(self, left_out: str) -> None:
        self.left_out, self.watched = left_out, list[str]()

    def reason(self, what: str) -> str | None:
        return "it ended its process" if what == self.left_out else None

    def __call__(self, what: str, stage: str) -> Any:
        self.watched.append(what)
        assert compile_ahead.active()
        return nullcontext()


def test_kernels_are_compiled_before_anything_is_timed() -> None:
    def timer(steps: Any) -> Any:
        raise AssertionError("timed")

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    calls = observe(model, ["0", "1"], x)
    texts = {"0": ["circulant[block_size=4]", "sparse", "dense:fft"], "1": ["circulant[block_size=4]", "weight-only"]}
    attempts = [
        Attempt(Method.parse(text), (name,), model.get_submodule(name), None, None)
        for name, row in texts.items()
        for text in row
    ]
    fatal = Fatal("1, circulant[block_size=4]")
    chosen = Selector(timer, Cache(None, {}), "eager", training=False)
    observed = Observed(model, Settings("fp16", "nhwc", "graph"), (x,), calls, chosen, None)
    context: Any = SimpleNamespace(budget=Budget(None), fatal=fatal, watch=lambda _: None)
    compile_kernels(attempts, observed, context)
    assert fatal.watched == ["0, circulant[block_size=4]", "1, weight-only"]
    assert not compile_ahead.active()
