"""Profiles recorded on a GPU, with kernels and counters, for explain, compare and report without a GPU.

Each was written by ``benchmarks/profiles.py``, forward and backward at several batch sizes, in TF32.
"""

from __future__ import annotations

from pathlib import Path

from lamina.errors import UsageError, nearest

_ENDING = ".json.xz"


def names() -> tuple[str, ...]:
    """The recordings, as ``network_device``."""
    return tuple(sorted(path.name.removesuffix(_ENDING) for path in Path(__file__).parent.glob(f"*{_ENDING}")))


def path(name: str) -> Path:
    """The path of a recording; the device is optional if only one recording has this network.

    Raises:
        UsageError: there is none of that name, or more than one.
    """
    found = [each for each in names() if name in (each, each.rpartition("_")[0])]
    if len(found) != 1:
        raise UsageError(f"there is no recording {name!r}: {' or '.join(found) or nearest(name, names())}")
    return Path(__file__).parent / f"{found[0]}{_ENDING}"
