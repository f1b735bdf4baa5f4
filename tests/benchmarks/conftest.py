"""What every benchmark's tests need."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _known_commit() -> Iterator[None]:
    """Results written in tests are of this commit, also where the source is no checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.source.commit", lambda: "0123abc")
        yield
