"""DR and MD of each version, against the text of section 7.3.2."""

import pytest

from lamina.accelerate.papers.circulant_ladder.mapping import Sizes
from lamina.accelerate.papers.circulant_ladder.metrics import equation_7_5, equation_7_6, locality
from lamina.accelerate.papers.circulant_ladder.rungs import IMPLS

A = {k: Sizes(n=128, p=4096 // k, q=8192 // k, f=k // 2 + 1) for k in (16, 32, 64)}
"""Layer A of table 7.3."""


@pytest.mark.parametrize("k", A)
def test_reuse_is_that_of_the_equations(k: int) -> None:
    assert locality("o1", "forward", A[k]).dr == equation_7_5(k)
    assert locality("o2", "forward", A[k]).dr == locality("fusion", "forward", A[k]).dr == equation_7_6(k)
    assert locality("as_written", "forward", A[k]).dr == 1


@pytest.mark.parametrize("k", A)
def test_distances_are_those_of_the_text(k: int) -> None:
    for phase in ("backward_data", "backward_weight"):
        assert locality("o2", phase, A[k]).md_read == 1  # "the MD value for the former is 1, which is ideal"
    assert locality("o2", "forward", A[k]).md_read > 1
    assert locality("o2_argued", "forward", A[k]).md_read == 1
    assert locality("o2", "forward", A[k]).md_written > locality("as_written", "forward", A[k]).md_written == 1


def test_every_version_has_metrics() -> None:
    found = {impl: locality(impl, "backward_weight", Sizes(n=3, p=2, q=5, f=3)) for impl in IMPLS}
    assert {one.dr for one in found.values()} == {1, 5}
