"""Statements of papers are looked for by rules that exist, and say so where rows cannot tell."""

import pytest

from benchmarks import circulant_accuracies, circulant_batches, sparse_training
from benchmarks.ladder.circulant import statements as ladder
from benchmarks.published import share, statements
from lamina.spec.published import entries

EVERY = ladder.RULES | circulant_batches.RULES | circulant_accuracies.RULES | sparse_training.RULES
ENTRIES = [one for one in entries() if one.unmeasured and one.statements]


def test_every_statement_that_benchmarks_look_for_has_a_rule_and_every_rule_a_statement() -> None:
    assert sorted(it.check for one in ENTRIES for it in one.statements) == sorted(EVERY)


def test_what_rows_cannot_tell_is_said() -> None:
    found = statements([one.id for one in ENTRIES], EVERY, [])
    assert len(found) == len(EVERY)
    assert {(one["ours"], one["holds"]) for one in found} == {("cannot be determined from these rows", None)}


def test_a_statement_without_a_rule_is_a_fault() -> None:
    with pytest.raises(KeyError, match="larger_batches_gain_more"):
        statements(["circulant-figure-7.6"], {}, [])


def test_a_share_counts_cases() -> None:
    assert share("layers", [True, False, True]) == ("2 of 3 layers", False)
    assert share("layers", iter([True])) == ("1 of 1 layers", True)
    with pytest.raises(ValueError, match="expected layers, got none"):
        share("layers", [])
