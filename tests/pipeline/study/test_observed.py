"""What the layers of a network are called with."""

import torch
from tests.pipeline.study.test_subject import subject

from lamina.accelerate.select import Cache, Selector
from lamina.pipeline.study.observed import density, observe_layers
from lamina.record.study import Settings

EAGER = Settings("fp32", "nchw", "eager")


def test_layers_that_the_example_reaches_have_calls() -> None:
    one = subject(training=False)
    chosen = Selector(lambda _: {}, Cache(None, {}), "eager", training=False)
    model = one.at(one.dense, EAGER)
    found = observe_layers(one, model, {"features.0", "classifier.0"}, EAGER, chosen)
    assert found.calls.keys() == {"features.0", "classifier.0"}
    assert found.example[0].shape == (4, 1, 28, 28) and found.calls["features.0"].tensors[0].shape == (4, 1, 28, 28)
    assert found.groups == {"classifier.0": 25}, "pixels of a channel"


def test_density_is_the_fraction_that_is_not_zero() -> None:
    one = subject(training=False)
    chosen = Selector(lambda _: {}, Cache(None, {}), "eager", training=False)
    call = observe_layers(one, one.dense.eval(), {"features.0"}, EAGER, chosen).calls["features.0"]
    call.tensors[0].zero_()
    assert density(call) == 0.0
    call.tensors[0][:, :, ::2] = torch.ones(())
    assert density(call) == 0.5
