"""Profiles recorded on a GPU, with kernels and counters, for explain, compare and report without a GPU.

They are forward and backward. ``benchmarks/profiles.py`` wrote those in TF32, at several batch sizes;
``benchmarks/characterization.py`` those of the papers' networks, called ``dnnmark-``, in fp32, with counters at one
batch size and, on some, energy.
"""

from __future__ import annotations

from pathlib import Path

from lamina.errors import UsageError, nearest

_ENDING = ".json.xz"


def names() -> tuple[str, ...]:
    """The recordings, as ``network_device``."""
    return tuple(sorted(path.name.removesuffix(_ENDING) for path in Path(__file__).parent.glob(f"*{_ENDING}")))


def of(network: str) -> tuple[Path, ...]:
    """The recordings of a network, one for each device."""
    return tuple(path(name) for name in names() if name.rpartition("_")[0] == network)


def path(name: str) -> Path:
    """The path of a recording; the device is optional if only one recording has this network.

    Raises:
        UsageError: there is none of that name, or more than one.
    """
    found = [each for each in names() if name in (each, each.rpartition("_")[0])]
    if len(found) != 1:
        raise UsageError(f"there is no recording {name!r}: {' or '.join(found) or nearest(name, names())}")
    return Path(__file__).parent / f"{found[0]}{_ENDING}"
