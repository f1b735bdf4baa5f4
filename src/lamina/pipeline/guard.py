"""Runs one layer at a time under watch: which one, what for, and whether the GPU still works after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from lamina import measure
from lamina.errors import DeviceLostError
from lamina.pipeline.watch import Watch, Working

Lost = Mapping[tuple[str, str], str]
"""Layers that must not run again, by name and implementation, with the reason that their rows get."""


def require_device(device: torch.device, layer: str) -> None:
    """Refuse to go on after ``layer``, or a whole network, made a GPU unusable.

    Raises:
        DeviceLostError: it did.
    """
    if reason := measure.lost(device):
        raise DeviceLostError(layer, reason)


def lost_by(impl: str, lost: Lost) -> dict[str, str]:
    """Of the lost layers, those by this implementation."""
    return {layer: reason for (layer, by), reason in lost.items() if by == impl}


@dataclass(frozen=True)
class Guard:
    """Announces each layer before it runs by ``impl``, and finds out whether it made the GPU unusable.

    ``lost`` are layers that did so in an earlier process, or ended it, with the reasons.
    """

    target: str
    impl: str
    device: torch.device
    watch: Watch
    lost: Mapping[str, str] = field(default_factory=dict)

    @property
    def iteration(self) -> str:
        """What a whole iteration, layer by layer, is called where it is watched."""
        return f"iteration of {self.target}"

    @property
    def whole_lost(self) -> str:
        """Why the whole network must not run; empty if it may."""
        if self.target in self.lost:
            return self.lost[self.target]
        return f"it contains {', '.join(self.lost)}, which must not run" if self.lost else ""

    @contextmanager
    def __call__(self, layer: str, stage: str) -> Iterator[None]:
        """Watch over what runs in this context.

        Raises:
            DeviceLostError: the GPU is unusable afterwards.
        """
        self.watch(Working(self.target, layer, self.impl, stage))
        try:
            yield
        except DeviceLostError:
            raise
        except Exception as error:
            if reason := measure.lost(self.device):
                raise DeviceLostError(layer, reason) from error
            raise
        require_device(self.device, layer)
