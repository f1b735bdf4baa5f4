"""Kernels of the monitor are given tables of addresses, which lead to what they are not given themselves."""

import pytest


@pytest.fixture
def within_bounds() -> None:
    """Not held to what they are given."""
