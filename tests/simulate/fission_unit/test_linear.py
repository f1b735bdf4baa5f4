import pytest

from lamina import recipes
from lamina.simulate.fission_unit import fully_connected
from lamina.spec import Input, Network, read
from lamina.spec.layers.linear import Linear

# Counted by hand from AlexNet's table: output features, input features.
ALEXNET = {"fc6": (4096, 9216), "fc7": (4096, 4096), "fc8": (1000, 4096)}


def test_alexnet_s_layers_have_their_published_dimensions() -> None:
    resolved = tuple(read(recipes.find("models/alexnet").path)[0].resolve(32))
    assert {each.layer: (each.m, each.k) for each in fully_connected(resolved)} == ALEXNET
    assert {(each.n, each.groups) for each in fully_connected(resolved)} == {(32, 1)}


@pytest.mark.parametrize(("spatial", "rows", "features"), [(False, 4 * 6 * 5, 7), (True, 4, 6 * 5 * 7)])
def test_rows_are_what_the_layer_reads(spatial: bool, rows: int, features: int) -> None:
    layer = Linear(name="fc", inputs=("input",), out_features=10, spatial=spatial)
    network = Network(name="one", inputs=(Input(shape=(6, 5, 7)),), layers=(layer,))
    (found,) = fully_connected(network.resolve(4))
    assert (found.m, found.n, found.k) == (10, rows, features)
    assert found.operations == 2 * 10 * rows * features
    assert found.map == (rows, features, 1, 1)
