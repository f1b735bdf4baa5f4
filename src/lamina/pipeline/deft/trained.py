"""What must hold for a network before anything is searched, and trained weights from a file."""

from __future__ import annotations

import copy
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from lamina import run
from lamina.errors import UnsupportedError, UsageError
from lamina.run.checkpoint import require_strided

PREFIX = "model."
"""Prefix of a network's tensors in a checkpoint of ``lamina train``."""


def pretrained(network: nn.Module, path: Path) -> nn.Module:
    """A network with the weights of a safetensors file: a state dict, or a checkpoint of ``lamina train``.

    Raises:
        UsageError: the file cannot be read, or is of another network.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: expected a safetensors file, got {type(error).__name__}: {error}") from error
    own = run.saved_weights(network)
    if not own.keys() & tensors.keys():
        tensors = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    wrong = [name for name in own if name in tensors and own[name].shape != tensors[name].shape]
    if missing or extra or wrong:
        faults = [
            f"{what} {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
            for what, names in (("no", missing), ("unknown", extra))
            if names
        ]
        faults += [f"{n} {tuple(tensors[n].shape)} for {tuple(own[n].shape)}" for n in wrong[:5]]
        raise UsageError(f"{path}: expected the weights of this network, got {'; '.join(faults)}")
    run.load_weights(network, tensors)
    return network


def require_copies(network: nn.Module, verb: str) -> None:
    """Check that a network can be copied, since every candidate is a copy of it, and that its weights can be saved.

    Raises:
        UnsupportedError: with what cannot be copied or saved.
    """
    try:
        copy.deepcopy(network)
    except Exception as error:
        raise UnsupportedError(
            f"{verb} compares copies of the network, but copy.deepcopy raises {type(error).__name__}: {error}"
        ) from error
    require_strided(run.saved_weights(network))
