"""What the stages of a study share."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipeline.study.test_subject import subject

from lamina.errors import LaminaError
from lamina.pipeline.guard import Guard
from lamina.pipeline.study import StudyConfig
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.fatal import IMPL, Fatal
from lamina.pipeline.study.journal import Journal
from lamina.pipeline.watch import Working
from lamina.record.study import Settings


def test_a_network_that_ended_a_process_does_not_run_again(tmp_path: Path) -> None:
    told: list[Any] = []
    journal = Journal(None)
    fatal = Fatal(Guard("lenet5", IMPL, torch.device("cpu"), told.append), journal)
    learner: Any = type("Learner", (), {"settings": None})
    none: Any = None
    context = Context(
        target=none, subject=subject(training=False), config=StudyConfig(epochs=3), learner=learner, journal=journal,
        budget=Budget(None), fatal=fatal, store=none, run_id="1", folder=tmp_path, cache=tmp_path, watch=told.append,
        note=told.append, scored=True,
    )  # fmt: skip
    plans = context.plans(Settings("fp32", "nchw", "eager"), {"fc fused": ("fc", "relu")})
    assert plans.epochs == 3 and plans.merged["fc fused"] == ("fc", "relu")
    choice = {"fc": "fused"}
    with context.watched(plans, choice, "the plan"):
        (working,) = (one for one in told if isinstance(one, Working))
    assert working.layer == f"the plan {plans.key(choice)}, 1 layers changed" and working.stage == "the plan"
    fatal.add({(working.layer, IMPL): "it ended its process"})
    with pytest.raises(LaminaError, match="it ended its process"), context.watched(plans, choice, "the plan"):
        raise AssertionError("it ran again")
