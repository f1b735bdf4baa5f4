"""Compiled functions whose cache knows every file they are made of.

numba keeps what it compiled for as long as the function's own file is the same. But a constant or a function of another
file is compiled into it as well, and would live on there after that file was changed.
"""

from __future__ import annotations

from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CacheImpl

FOLDER = Path(__file__).parent


@cache
def stamp(folder: Path) -> str:
    """What all Python files below a folder say, as a short text."""
    texts = [(str(path.relative_to(folder)), path.read_bytes()) for path in sorted(folder.rglob("*.py"))]
    return sha256(repr(texts).encode()).hexdigest()


class WholeSimulator:
    """numba's choice of where to keep a function of the simulator, for as long as no file of the simulator changes."""

    @staticmethod
    def from_function(function: Any, file: str) -> Any:
        """The place, or None for functions from elsewhere, which is how numba asks the next one."""
        if FOLDER not in Path(file).parents:
            return None
        others = (kind.from_function(function, file) for kind in PLACES if kind is not WholeSimulator)
        place = next(filter(None, others), None)
        if place is not None:
            place.get_source_stamp = partial(stamp, FOLDER)
        return place


PLACES: list[Any] = CacheImpl._locator_classes
PLACES.insert(0, WholeSimulator)

compiled = partial(numba.njit, cache=True, error_model="numpy")
"""The decorator of everything that is compiled in the simulator; see numba.njit for its arguments."""
