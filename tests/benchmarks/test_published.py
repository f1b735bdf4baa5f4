"""Benchmarks add the statements of the entries that they measure to their summary."""

import pytest

from benchmarks.published import statements
from lamina.spec.published import entries


@pytest.mark.parametrize(
    "measures", ["circulant-batches", "circulant-accuracy", "circulant-counters", "activation-zeros"]
)
def test_rows_that_are_not_sufficient_decide_nothing(measures: str) -> None:
    found = statements(measures, [])
    assert len(found) == sum(len(one.statements) for one in entries() if one.measures == measures) > 0
    assert {(one["ours"], one["holds"]) for one in found} == {("cannot be determined from these rows", None)}
