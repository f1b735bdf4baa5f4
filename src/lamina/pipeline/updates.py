"""Updates of a training in the mode that a plan or a user asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from lamina import run
from lamina.accelerate.select import compiled
from lamina.accelerate.training.compressed_activations import saving
from lamina.errors import CheckError, UnsupportedError, UsageError
from lamina.pipeline.graphed import graphed_step
from lamina.run.update import AUTOCAST
from lamina.spec.plan import REPLAYED, PlanMode


def updates_in(mode: PlanMode, device: torch.device, note: Callable[[str], object]) -> run.Updates:
    """What makes updates in a mode.

    ``graph`` replays each update as one CUDA graph (`lamina.graphed_step`), ``compiled-graph`` one of the compiled
    network. What cannot be captured runs in eager mode, and ``note`` is told why.

    Raises:
        UsageError: the mode does not run here, with what to use.
    """
    if (reason := refusal(mode, device)) is not None:
        raise UsageError(f"mode {mode}: {reason}; use eager or compiled")
    match mode:
        case "eager":
            return run.eager_update
        case "graph":
            return lambda trained: _Graphed(trained, note)
        case "compiled-graph":
            return lambda trained: _Graphed(replace(trained, model=compiled(trained.model, mode)), note)
        case _:
            return lambda trained: run.eager_update(replace(trained, model=compiled(trained.model, mode)))


def compressing(updates: run.Updates) -> run.Updates:
    """Updates in eager mode whose forward passes keep sparse activations compressed."""
    return lambda trained: updates(replace(trained, model=cast(nn.Module, saving(trained.model))))


def refusal(mode: PlanMode, device: torch.device) -> str | None:
    """Why a mode does not run here, or nothing."""
    if mode in REPLAYED and device.type != "cuda":
        return f"CUDA graphs need a CUDA device, this is {device.type}"
    if mode in REPLAYED and run.rank_and_world()[1] > 1:
        return "CUDA graphs need a single process"
    return None


def fastest(device: torch.device) -> PlanMode:
    """The mode of trainings that are a part of a longer job: the least launch overhead, without compiling."""
    return "eager" if refusal("graph", device) else "graph"


class _Graphed:
    """Updates as CUDA graphs; in eager mode from the first that cannot be captured on."""

    def __init__(self, trained: run.Trained, note: Callable[[str], object]):
        self.trained, self.note = trained, note
        settings, scaler = trained.settings, trained.scaler
        hits = self.hits = torch.zeros((), dtype=torch.int64, device=trained.device)

        def loss(outputs: object, y: Tensor) -> Tensor:
            value, found = trained.objective(outputs, y, settings.label_smoothing)
            hits.copy_(found)
            return value

        self.step: run.Update | None = None
        if (reason := _uncapturable(trained.network)) is not None:
            self._leave(reason)
            return
        self.graphed = graphed_step(
            trained.model, loss, trained.optimizer, autocast=AUTOCAST.get(settings.precision),
            scaler=scaler if scaler.is_enabled() else None, clip_norm=settings.clip_norm,
        )  # fmt: skip

    def __call__(self, x: run.Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.step is None:
            try:
                return self.graphed(x, y), self.hits
            except (UnsupportedError, CheckError, torch.OutOfMemoryError) as error:  # the update was not made
                self._leave(run.one_line(error))
        assert self.step is not None
        return self.step(x, y)

    def _leave(self, reason: str) -> None:
        self.note(f"updates run in eager mode, not as CUDA graphs: {reason}")
        self.trained.optimizer.zero_grad(set_to_none=True)
        self.step = run.eager_update(self.trained)


def _uncapturable(network: nn.Module) -> str | None:
    if any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse for layer in network.modules()):
        return "the gradients of its embeddings are sparse"
    return None
