"""numba compilation, with a cache that depends on every file of the simulator.

numba's cache of a compiled function depends only on the function's own file. Constants and functions of other files are
compiled into it as well, and would be stale after a change of these files.
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
    """A hash of all Python files below a folder."""
    texts = [(str(path.relative_to(folder)), path.read_bytes()) for path in sorted(folder.rglob("*.py"))]
    return sha256(repr(texts).encode()).hexdigest()


class SimulatorCacheLocator:
    """A numba cache locator whose entries are valid until any file of the simulator changes."""

    @staticmethod
    def from_function(function: Any, file: str) -> Any:
        """The locator, or None for functions of other packages, for which numba tries the next locator."""
        if FOLDER not in Path(file).parents:
            return None
        others = (each.from_function(function, file) for each in LOCATORS if each is not SimulatorCacheLocator)
        locator = next(filter(None, others), None)
        if locator is not None:
            locator.get_source_stamp = partial(stamp, FOLDER)
        return locator


LOCATORS: list[Any] = CacheImpl._locator_classes
LOCATORS.insert(0, SimulatorCacheLocator)

compiled = partial(numba.njit, cache=True, error_model="numpy")
"""The decorator of all compiled functions of the simulator; for its arguments see numba.njit."""
