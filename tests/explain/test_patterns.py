import doctest

from hypothesis import given
from hypothesis import strategies as st

from lamina.explain import patterns as module
from lamina.explain.patterns import patterns, repeated


def test_only_numbers_that_differ_become_stars() -> None:
    names = [f"layer{stage}.{block}.conv2" for stage in (1, 2) for block in range(2)]
    assert patterns(names) == {"layer*.*.conv2": names}
    assert list(patterns(names[:2])) == ["layer1.*.conv2"]


def test_the_last_component_tells_layers_apart() -> None:
    names = ["features.0", "features.3", "relu1", "relu2", "b.0.conv1", "b.0.conv2"]
    assert list(patterns(names)) == names


def test_a_lone_layer_has_no_count() -> None:
    assert [repeated(*it) for it in patterns(["a.0.x", "a.1.x", "b"]).items()] == ["a.*.x (2 layers)", "b"]


@given(st.lists(st.text("a0.*1", min_size=1, max_size=8)))
def test_every_layer_has_a_pattern(names: list[str]) -> None:
    assert {layer for layers in patterns(names).values() for layer in layers} <= {*names}


def test_examples() -> None:
    assert doctest.testmod(module).failed == 0
