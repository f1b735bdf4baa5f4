"""The training loop: deterministic and exactly resumable.

All randomness in a step is seeded by (seed, step), and the order of the data by (seed, epoch). A checkpoint therefore
needs no random state, and a run that was killed and resumed ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lamina.errors import LaminaError, UsageError
from lamina.run.checkpoint import load, save
from lamina.run.inputs import Inputs, forward, moved
from lamina.run.objective import Objective, classification
from lamina.run.precision import precision_mode
from lamina.run.processes import GradientHook, Parallel, data_parallel, gathered, shard, sharded_as
from lamina.run.update import Trained, Updates, autocast, eager_update
from lamina.run.weights import load_weights, saved_weights
from lamina.spec.training import Training

Batches = Iterable[tuple[Inputs, Tensor]]

SAVING = 0.05
"""The largest part of the time of a training that its checkpoints take."""

SHORT_S = 0.1
"""Checkpoints that are written within this time are never left out."""


@dataclass(frozen=True)
class Progress:
    """Training progress; ``test_loss`` and ``test_accuracy`` are set at the end of an epoch.

    Losses and accuracies are means over the epoch so far.
    """

    step: int
    steps: int
    epoch: int
    learning_rate: float
    train_loss: float
    train_accuracy: float
    test_loss: float | None = None
    test_accuracy: float | None = None


def train(
    network: nn.Module,
    settings: Training,
    train_batches: Callable[[int, int], Batches],
    test_batches: Callable[[], Batches],
    steps_per_epoch: int,
    device: torch.device,
    checkpoint: Path | None = None,
    save_every: int = 200,
    report_every: int = 10,
    resume: bool = False,
    facts: dict[str, Any] | None = None,
    groups: Sequence[dict[str, Any]] | None = None,
    objective: Objective | None = None,
    gradient_hook: GradientHook | None = None,
    parallel: Parallel = "ddp",
    seconds: Callable[[], float] | None = None,
    updates: Updates = eager_update,
) -> Iterator[Progress]:
    """Train a network, yielding progress every ``report_every`` steps and at the end of each epoch.

    Args:
        network: maps inputs to what the objective takes; trained in place.
        settings: optimizer, schedule, seed.
        train_batches: the batches ``(x, y)`` of an epoch, starting at a batch index; the same for the same epoch.
            ``x`` is a tuple where the network has several inputs.
        test_batches: the batches of the test set.
        steps_per_epoch: number of batches that ``train_batches`` yields.
        checkpoint: checkpoint file, written every ``save_every`` steps and after each epoch.
        resume: continue from ``checkpoint`` if it exists.
        facts: metadata stored in the checkpoint.
        groups: parameter groups of the optimizer, if parameters differ in their options. The schedule scales the ``lr``
            of each.
        objective: the loss; by default the cross-entropy of class scores.
        gradient_hook: the communication hook of DistributedDataParallel; see `data_parallel`.
        parallel: ``fsdp`` needs a process group, and a precision without a loss scale.
        seconds: a clock. With it, checkpoints that would take more than 5 % of the time, as those of large networks do,
            are written less often.
        updates: makes the update of the weights; by default in eager mode. Evaluation is always in eager mode.

    Raises:
        UsageError: the checkpoint has other settings or is of another network.
        LaminaError: the loss is not finite.
    """
    network.to(device)
    if parallel == "fsdp":
        shard(network, device)
    objective = objective or classification()
    optimizer = _optimizer(network, settings, groups)
    lr_scales = [group["lr"] / settings.learning_rate for group in optimizer.param_groups]
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
    # Loss, hits and samples of the epoch stay on the device: reading them would synchronize.
    first, sums = 0, torch.zeros(3, dtype=torch.float64, device=device)
    if resume and checkpoint and checkpoint.exists():
        first, sums = _restore(checkpoint, network, optimizer, scaler, settings, device)
    model = network if parallel == "fsdp" else data_parallel(network, gradient_hook)
    model.train()
    update = updates(Trained(model, network, optimizer, scaler, objective, settings, device))
    steps = settings.epochs * steps_per_epoch
    rank = dist.get_rank() if dist.is_initialized() else 0

    now = seconds or (lambda: 0.0)
    saved, took = now(), 0.0

    def keep(step: int) -> None:
        nonlocal saved, took
        if not checkpoint or (rank and parallel != "fsdp"):
            return
        early = took > SHORT_S and now() - saved < took / SAVING
        if early and step < steps and parallel != "fsdp":
            return
        begun = now()
        tensors = _tensors(network, optimizer)  # all processes gather what they store parts of, so none leaves it out
        if rank == 0:
            _keep(checkpoint, tensors, scaler, settings, step, sums, facts or {})
        saved = now()
        took = saved - begun

    with precision_mode(settings.precision):
        for epoch in range(first // steps_per_epoch, settings.epochs):
            begun = first - epoch * steps_per_epoch if first > epoch * steps_per_epoch else 0
            if not begun:
                sums.zero_()
            for step, (x, y) in enumerate(train_batches(epoch, begun), epoch * steps_per_epoch + begun):
                _seed(hash((settings.seed, step, rank)) % 2**63)
                rate = settings.rate(step, steps)
                for group, scale in zip(optimizer.param_groups, lr_scales, strict=True):
                    group["lr"] = rate * scale
                if not (model.training and network.training):  # after an evaluation, also by the caller
                    model.train()
                y = y.to(device)
                _count(sums, *update(moved(x, device), y), y)
                done = step + 1
                ended = done % steps_per_epoch == 0
                if not ended and done % save_every == 0:
                    keep(done)
                if ended:
                    test = _evaluate(model, test_batches(), settings, device, objective)
                    yield Progress(done, steps, epoch, rate, *_means(sums, step), *test)
                    # Only now: a process that is killed before its caller has stored the epoch trains it again.
                    keep(done)
                elif done % report_every == 0:
                    yield Progress(done, steps, epoch, rate, *_means(sums, step))


def _seed(seed: int) -> None:
    """Seed the generators of the CPU and of all GPUs. `torch.manual_seed` also formats stacks, for other devices."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _count(sums: Tensor, loss: Tensor, hits: Tensor, y: Tensor) -> None:
    sums += torch.stack([loss * y.numel(), hits, hits.new_full((), y.numel())]).double()


def _means(sums: Tensor, step: int | None = None) -> tuple[float, float]:
    """Mean loss and accuracy over every process."""
    total = sums.clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    loss, hits, samples = total.tolist()
    if not isfinite(loss):
        where = "evaluation" if step is None else f"step {step}"
        raise LaminaError(f"{where}: the loss is {loss}; lower the learning rate")
    return (loss / samples, hits / samples) if samples else (0.0, 0.0)


@torch.no_grad()
def _evaluate(
    model: nn.Module, batches: Batches, settings: Training, device: torch.device, objective: Objective
) -> tuple[float, float]:
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for x, y in batches:
        x, y = moved(x, device), y.to(device)
        with autocast(settings, device):
            outputs = forward(model, x)
        _count(sums, *objective(outputs, y, 0.0), y)
    return _means(sums)


def _optimizer(
    network: nn.Module, settings: Training, groups: Sequence[dict[str, Any]] | None = None
) -> torch.optim.Optimizer:
    trained = [p for p in network.parameters() if p.requires_grad]
    parameters: Sequence[Any] = (
        trained if groups is None else [dict(group) for group in groups]
    )  # the optimizer modifies them
    if not parameters:
        raise UsageError("expected a network with trainable parameters, got one without")
    common = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=settings.momentum, **common)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return optimizer(parameters, **common)  # type: ignore[arg-type]


def _tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and optimizer states."""
    tensors = {f"model.{name}": gathered(t) for name, t in saved_weights(network).items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": gathered(t) for key, t in state.items() if isinstance(t, Tensor)}
    return tensors


def _keep(
    path: Path,
    tensors: dict[str, Tensor],
    scaler: torch.amp.GradScaler,
    settings: Training,
    step: int,
    sums: Tensor,
    facts: dict[str, Any],
) -> None:
    state = {
        "step": step,
        "settings": settings.model_dump(),
        "sums": sums.tolist(),
        "scaler": scaler.state_dict(),
    }
    save(path, tensors, state | {"facts": facts})


def _restore(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    settings: Training,
    device: torch.device,
) -> tuple[int, Tensor]:
    tensors, state = load(path)
    own = Training.model_validate(
        state["settings"]
    ).model_dump()  # with defaults for settings newer than the checkpoint
    other = {k: v for k, v in own.items() if settings.model_dump()[k] != v}
    if other:
        wanted = ", ".join(f"{key}={value}" for key, value in other.items())
        raise UsageError(
            f"{path}: this checkpoint was trained with {wanted}; use the same settings, or start without --resume"
        )
    try:
        kept = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        own = saved_weights(network)
        load_weights(network, {n: sharded_as(t, own.get(n)) for n, t in kept.items()})
    except RuntimeError as error:
        raise UsageError(f"{path}: this checkpoint is of another network: {error}") from error
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = sharded_as(tensor, parameters[int(index)])
    optimizer.load_state_dict(optimizer.state_dict() | {"state": states})
    scaler.load_state_dict(state["scaler"])
    return state["step"], torch.tensor(state["sums"], dtype=torch.float64, device=device)
