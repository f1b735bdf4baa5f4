"""``lamina bench --phase allreduce``: the exchange of gradients, without torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lamina.cli import options
from lamina.cli.networks import stdout_for_results
from lamina.errors import UsageError

if TYPE_CHECKING:
    from lamina.build import Target
    from lamina.record import Run
    from lamina.spec import Workload
    from lamina.store import Store

ALLREDUCE = "allreduce"


def require_exchange(phase: str, processes: int | None, others: Mapping[str, object]) -> None:
    """Check --processes, and options that mean nothing to --phase allreduce.

    Raises:
        UsageError: they do not go together.
    """
    if ALLREDUCE not in phase.split(","):
        if processes is not None:
            raise UsageError("--processes: expected --phase allreduce beside it")
        return
    if phase != ALLREDUCE:
        raise UsageError(f"--phase: expected {ALLREDUCE} without other phases, got {phase}")
    if processes is not None and processes < 2:
        raise UsageError(f"--processes: expected at least 2, which exchange gradients, got {processes}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(f"--phase {ALLREDUCE} starts its own processes: use --processes instead of torchrun")
    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"--phase {ALLREDUCE}: expected no {', '.join(given)}")


def exchange(
    targets: Sequence[Target],
    workloads: Sequence[Workload],
    device: str,
    processes: int,
    database: Store,
    resume: bool,
) -> list[Run]:
    """Measure the exchange of gradients."""
    from lamina.cli.watching import Watcher
    from lamina.pipeline.allreduce import allreduce

    with Watcher() as watch, stdout_for_results():
        return [
            allreduce(
                target,
                workload.model_copy(update={"device": device}),
                database,
                processes=processes,
                command=options.command_line(),
                resume=resume,
                watch=watch,
            )
            for target, workload in zip(targets, workloads, strict=True)
        ]
