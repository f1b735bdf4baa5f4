"""The layers of the zoo that are stored are those that tracing finds."""

import pytest

from lamina import build
from lamina.errors import UsageError
from lamina.spec.zoo import ZOO, find


@pytest.mark.parametrize("name", sorted(ZOO))
def test_stored_layers_are_the_traced_ones(name: str) -> None:
    target = build.from_zoo(ZOO[name])
    assert find(name).resolve(3) == target.resolve(3), "run: python tools/describe_zoo.py"
    assert (ZOO[name].inputs, ZOO[name].resolve()[0].output[0]) == (target.inputs, target.batch)


def test_an_unknown_network_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'lenet5'"):
        find("lenet")
