"""Which methods, and which variants of them, are tried on a layer."""

import pytest
import torch
from torch import nn

from lamina.pipeline.study import StudyConfig
from lamina.pipeline.study.attempts import HOPELESS, Attempt, attempts_on, hopeless, ratio_to_dense, too_dense
from lamina.record import Timing
from lamina.record.study import Settings, Trial
from lamina.spec import Method

SETTINGS = Settings("fp16", "nhwc", "graph")


def trial(impl: str, time_us: float | None, dense_us: float = 10.0) -> Trial:
    timing = None if time_us is None else Timing("graph", "warm", time_us, time_us, time_us, 7)
    return Trial("conv", "Conv2d", impl, SETTINGS, timing=timing, dense_us=dense_us if timing else None)


def attempt(text: str) -> Attempt:
    return Attempt(Method.parse(text), ("conv",), nn.Identity(), None, None, 1)


@pytest.mark.parametrize(
    ("trials", "ratio"),
    [
        ([trial("dense", 10.0), trial("eliminated", 30.0), trial("eliminated[fold=true]", 8.0)], 0.8),
        ([trial("dense", 10.0), trial("circulant[block_size=64]", 30.0)], 3.0),
        ([trial("dense", 10.0), trial("circulant[block_size=64]", None)], 0.0),
        ([], 0.0),
    ],
)  # fmt: skip
def test_a_method_is_as_good_as_its_fastest_candidate(trials: list[Trial], ratio: float) -> None:
    assert ratio_to_dense(trials) == ratio


def test_variants_of_what_was_much_slower_are_not_tried() -> None:
    reached = {("conv", "circulant"): 3.0, ("conv", "eliminated"): HOPELESS, ("conv", "dense"): 9.0}
    reason = hopeless(attempt("circulant[block_size=32]"), reached)
    assert reason == "the variant of circulant before it took 3.0 times as long as the dense layer"
    for text in ("eliminated[keep=0.5]", "dense:fft", "sparse"):
        assert hopeless(attempt(text), reached) is None


@pytest.mark.parametrize(("text", "device", "density", "tried"), [
    ("sparse", "cuda", 0.21, False), ("sparse", "cuda", 0.2, True), ("sparse", "cpu", 0.9, True),
    ("sparse", "cuda", None, True), ("circulant[block_size=32]", "cuda", 0.9, True),
])  # fmt: skip
def test_sparse_products_are_tried_on_sparse_inputs(text: str, device: str, density: float | None, tried: bool) -> None:
    known = {} if density is None else {"conv": density}
    reason = too_dense(attempt(text), known, "fp16", torch.device(device))
    assert (reason is None) == tried
    assert tried or reason == "21% of its inputs are not zero; sparse products in fp16 need 20% or less"


def test_each_method_has_an_attempt_on_each_layer_with_weights() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)).eval()
    texts = ("circulant[block_size=4]", "dense:fft", "circulant[block_size=2]", "fused[impl=reference]")
    found = attempts_on(model, StudyConfig(methods=texts, layers=("0", "3")), Settings("fp32", "nchw", "eager"))
    assert [(str(one), one.rank, one.several) for one in found if one.refusal is None] == [
        ("0, circulant[block_size=4]", 0, False),
        ("3, circulant[block_size=4]", 0, False),
        ("0, dense:fft", 0, False),
        ("0, circulant[block_size=2]", 1, False),
        ("3, circulant[block_size=2]", 1, False),
        ("0, fused[impl=reference]", 0, True),
    ]
    assert {one.layer for one in found} == {"0", "3"}
