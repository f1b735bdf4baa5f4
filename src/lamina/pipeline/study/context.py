"""What the stages of a study share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lamina.build import Target
from lamina.errors import LaminaError
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.fatal import Fatal
from lamina.pipeline.study.journal import Journal
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.watch import Watch
from lamina.record.study import Settings
from lamina.store import Store


@dataclass(frozen=True)
class Context:
    """What the stages of a study share.

    Attributes:
        target: the network as its user named it.
        subject: the dense network on the device, with its data.
        config: goal, limits and methods.
        learner: trains.
        journal: answers that were found before.
        budget: the time that is left.
        fatal: watches over what may end the process.
        store: receives every candidate.
        run_id: of the study.
        folder: of checkpoints.
        cache: folder of selections.
        watch: receives the progress.
        note: adds a note to the run, and shows it.
        scored: whether outputs hold class scores of real labels.
    """

    target: Target
    subject: Subject
    config: StudyConfig
    learner: Learner
    journal: Journal
    budget: Budget
    fatal: Fatal
    store: Store
    run_id: str
    folder: Path
    cache: Path
    watch: Watch
    note: Callable[[str], object]
    scored: bool

    def plans(self, settings: Settings, merged: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> Plans:
        """Networks by choices at the settings; ``merged`` as in `Plans`."""
        return Plans(
            self.subject, settings, self.config.epochs, self.learner, self.learner.settings, self.journal, self.folder,
            self.watch, merged, self.scored,
        )  # fmt: skip

    @contextmanager
    def watched(self, plans: Plans, choice: Choice, stage: str) -> Iterator[None]:
        """Watch over a network by a choice.

        Raises:
            LaminaError: it ended an earlier process.
            DeviceLostError: the GPU is unusable afterwards.
        """
        what = f"the plan {plans.key(choice)}, {len(choice)} layers changed"
        if (reason := self.fatal.reason(what)) is not None:
            raise LaminaError(reason)
        with self.fatal(what, stage):
            yield
