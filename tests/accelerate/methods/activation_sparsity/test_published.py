"""What the paper prints of the monitor and of zeros, beside what is here."""

import pytest
from torch import nn

from lamina.accelerate.training.sparsity_monitor import Parameters
from lamina.build.models import create
from lamina.spec.published import PublishedValue, entry


@pytest.mark.parametrize("printed", entry("spartan-table-6.2").values, ids=lambda value: value.layer)
def test_the_monitor_s_parameters_are_those_printed(printed: PublishedValue) -> None:
    assert getattr(Parameters(), printed.layer) == printed.value


@pytest.mark.parametrize(("figure", "kind"), [("spartan-figure-6.1", nn.ReLU), ("spartan-figure-6.3", nn.Conv2d)])
def test_figures_are_about_layers_that_exist(figure: str, kind: type[nn.Module]) -> None:
    network = create(entry(figure).recipe, 10)
    assert {type(network.get_submodule(value.layer)) for value in entry(figure).values} == {kind}


def test_figure_6_3_is_about_a_convolution_of_5x5x64x64() -> None:
    assert create("cifarnet64", 10).get_parameter("features.4.weight").shape == (64, 64, 5, 5)
