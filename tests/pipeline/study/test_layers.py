"""The order in which layers are tried, and what is kept of it."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from lamina.pipeline.study import layers
from lamina.pipeline.study.attempts import HOPELESS, Attempt
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.layers import Layers
from lamina.record import Timing
from lamina.record.study import Settings, Trial
from lamina.spec import Method

SETTINGS = Settings("fp32", "nchw", "eager")


def attempt(text: str, layer: str = "conv", rank: int = 0) -> Attempt:
    return Attempt(Method.parse(text), (layer,), nn.Identity(), None, None, rank)


def trial(impl: str, time_us: float | None, layer: str = "conv", outcome: Any = "slower", reason: str = "") -> Trial:
    timing = None if time_us is None else Timing("graph", "warm", time_us, time_us, time_us, 7)
    return Trial(layer, "Conv2d", impl, SETTINGS, timing, 10.0, outcome=outcome, reason=reason)


def test_a_faster_candidate_is_an_option_with_what_it_saves() -> None:
    found = Layers(dense_us={"conv": 9.0})
    assert found.add(trial("dense", 10.0), attempt("sparse"))
    assert found.add(trial("sparse", 8.0, outcome="selected"), attempt("sparse"))
    assert found.faster == {"conv": {"sparse": 2.0}} and found.merged == {"conv sparse": ("conv",)}
    option = found.option("conv", "sparse")
    assert (option.saved_us, option.parts) == (2.0, {"conv": 1 - 2.0 / 10.0}), "the dense time is that of its rounds"


def test_a_dense_layer_is_kept_once_and_not_of_layers_that_are_replaced_together() -> None:
    found, together = Layers(), Attempt(Method.parse("fused"), ("conv", "relu"), nn.Sequential(), None, None)
    assert not found.add(trial("dense", 12.0), together)
    assert found.add(trial("dense", 10.0), attempt("sparse"))
    assert not found.add(trial("dense", 11.0), attempt("weight-only"))
    assert found.dense_us == {"conv": 10.0} and len(found.trials) == 1


def test_layers_without_a_candidate_have_every_reason_once() -> None:
    found = Layers()
    rows = [("sparse", "conv", "no"), ("sparse", "conv", "no"), ("fused", "conv", "no ReLU"), ("fused", "fc", "never")]
    for impl, layer, reason in rows:
        found.add(trial(impl, None, layer, "refused", reason), attempt(impl, layer))
    found.add(trial("sparse", 3.0, "fc"), attempt("sparse", "fc"))
    assert found.unsupported == {"conv": "sparse: no; fused: no ReLU"}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_first_variants_come_first_and_compile_together(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    did: list[Any] = []
    slow = {"fc"}

    def compiled(attempts: list[Attempt], *_: Any) -> None:
        did.append([str(one) for one in attempts])

    def tried(one: Attempt, *_: Any) -> list[Trial]:
        did.append(str(one) if one.refusal is None else one.refusal)
        return [trial(str(one.method), 10 * (2 * HOPELESS if one.layer in slow else 1), one.layer)]

    class Fatal:
        def reason(self, what: str) -> None: ...

        def __call__(self, what: str, stage: str) -> Any:
            return nullcontext()

    monkeypatch.setattr(layers, "compile_kernels", compiled)
    monkeypatch.setattr(layers, "trials_of", tried)
    stored: list[Trial] = []
    context: Any = SimpleNamespace(
        subject=SimpleNamespace(device=SimpleNamespace(type=device)), fatal=Fatal(), budget=Budget(None),
        watch=lambda _: None, store=SimpleNamespace(add_trial=lambda _, one: stored.append(one)), run_id="1",
    )  # fmt: skip
    observed: Any = SimpleNamespace(settings=SETTINGS, groups=None)
    first = [attempt("circulant[block_size=64]", layer) for layer in ("fc", "conv")]
    second = [attempt("circulant[block_size=32]", layer, rank=1) for layer in ("fc", "conv")]
    found = Layers()
    layers._try_all(context, [*first, *second], observed, found)
    reason = "the variant of circulant before it took 2.5 times as long as the dense layer"
    expected = [
        ["fc, circulant[block_size=64]", "conv, circulant[block_size=64]"],
        "fc, circulant[block_size=64]", "conv, circulant[block_size=64]",
        ["conv, circulant[block_size=32]"], reason, "conv, circulant[block_size=32]",
    ]  # fmt: skip
    assert did == [one for one in expected if device == "cuda" or isinstance(one, str)]
    assert stored == found.trials and len(stored) == 4
