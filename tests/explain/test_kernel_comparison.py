from dataclasses import replace

import pytest
from tests.explain.recorded import kernel, key, row

from lamina.errors import UsageError
from lamina.explain import compare_kernels
from lamina.record import KernelRun, LayerRun

OF = key("features.3")


def side(*names: str, layer: str = "features.3", us: float = 10.0) -> tuple[list[LayerRun], list[KernelRun]]:
    of = key(layer)
    return [row(of, us * max(len(names), 1))], [kernel(of, us, name, place) for place, name in enumerate(names)]


@pytest.mark.parametrize(
    ("a", "b", "change", "removed", "added", "reordered"),
    [
        ("xy", "xy", "same", "", "", False),
        ("xy", "yx", "changed", "", "", True),
        ("xy", "xz", "changed", "y", "z", False),
        ("xyx", "xy", "changed", "x", "", False),
        ("", "x", "added", "", "x", False),
        ("x", "", "removed", "x", "", False),
        ("xyz", "", "removed", "xyz", "", False),
        ("xyxz", "x", "changed", "yxz", "", False),
    ],
)
def test_kernels_are_compared_by_name_and_order(
    a: str, b: str, change: str, removed: str, added: str, reordered: bool
) -> None:
    (found,) = compare_kernels(*side(*a), *side(*b))
    assert (found.change, found.a, found.b) == (change, tuple(a), tuple(b))
    assert (found.removed, found.added) == (tuple(removed), tuple(added))
    assert found.reordered is reordered
    assert (found.a_us, found.b_us) == (10.0 * len(a), 10.0 * len(b))


def test_phases_of_one_run_alone_are_added_or_removed() -> None:
    a, b = side("x", layer="features.3"), side("y", layer="features.1")
    found = compare_kernels(*a, *b)
    assert [(it.layer, it.change) for it in found] == [("features.3", "removed"), ("features.1", "added")]


def test_rows_pair_across_precisions_and_batches() -> None:
    of = OF._replace(precision="bf16", batch=16)
    found = compare_kernels(*side("x"), [row(of, 5.0)], [kernel(of, 5.0, "y")])
    assert [(it.change, it.removed, it.added) for it in found] == [("changed", ("x",), ("y",))]


def test_phases_without_kernels_are_omitted_and_duplicates_rejected() -> None:
    assert compare_kernels(*side(), *side()) == ()
    rows, kernels = side("x")
    with pytest.raises(UsageError, match="1 duplicate rows"):
        compare_kernels([*rows, replace(rows[0], rel_error=1.0)], kernels, rows, kernels)
