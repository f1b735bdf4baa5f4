"""lamina: a layer-by-layer performance laboratory for deep neural networks on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    import torch
    from torch import nn

__version__ = "0.1.0"


def load(
    path: str | os.PathLike[str], network: nn.Module | None = None, device: torch.device | str = "cpu"
) -> nn.Module:
    """The network that ``lamina deft`` saved, in evaluation mode: bit for bit what was saved.

    Args:
        path: the folder, or the recipe in it.
        network: the dense network, needed where it is none of the zoo and has no description; changed in place.
        device: where to put it.

    Raises:
        UsageError: the files are missing, damaged, of an unknown version, or do not fit each other.
    """
    from lamina.pipeline.deft.recipe_files import load as read

    return read(path, network, device)
