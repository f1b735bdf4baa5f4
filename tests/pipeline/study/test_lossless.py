"""What keeps results: with fused units or without."""

from lamina.pipeline.study.lossless import is_unit, lossy, with_units, without_units

UNIT, OTHER, FEWER = "fused[impl=kernel]", "dense:space_to_depth", "eliminated[keep=0.5]"
FASTER = {
    "first": {UNIT: 3.0, OTHER: 5.0, FEWER: 9.0},
    "second": {UNIT: 4.0, FEWER: 6.0},
    "third": {UNIT: 2.0, "sparse": 1.0},
    "last": {FEWER: 1.0},
}


def test_lossy_layers_are_those_that_change_results() -> None:
    assert lossy({"a": UNIT, "b": OTHER, "c": FEWER, "d": "sparse", "e": "circulant[block_size=64]"}) == {
        "c": FEWER, "e": "circulant[block_size=64]",
    }  # fmt: skip
    assert is_unit(UNIT) and not is_unit(OTHER)


def test_units_join_where_they_save_more() -> None:
    assert with_units({}, FASTER) == {"first": UNIT, "second": UNIT, "third": UNIT}
    assert with_units({"first": OTHER, "second": FEWER, "third": "sparse"}, FASTER) == {
        "first": OTHER, "second": FEWER, "third": UNIT,
    }  # fmt: skip


def test_without_units_others_take_their_place() -> None:
    choice = {"first": UNIT, "second": UNIT, "third": UNIT, "last": FEWER}
    assert without_units(choice, FASTER) == {"first": OTHER, "third": "sparse", "last": FEWER}
    assert without_units(without_units(choice, FASTER), FASTER) == without_units(choice, FASTER)
    assert with_units(without_units(choice, FASTER), FASTER) == choice | {"first": OTHER}
