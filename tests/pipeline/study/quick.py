"""Short studies, as most tests of whole studies run them."""

from pathlib import Path
from typing import Any

from lamina.pipeline import find
from lamina.pipeline.study import Studied, StudyConfig, study
from lamina.spec.training import Training
from lamina.store import Store

SETTINGS = Training(batch=20, learning_rate=0.05, warmup_steps=0)
QUICK = StudyConfig(
    modes=("eager",), precisions=("fp32",), batch=4, calibration=20, train_epochs=2, rivals=False,
    max_accuracy_drop=5.0,
    methods=("eliminated[recovery=least_squares,keep=0.5]", "fused"),
)  # fmt: skip


def run(folder: Path, data: str, store: Store, config: StudyConfig = QUICK, **options: Any) -> Studied:
    target, _ = find(options.pop("network", "lenet5"))
    return study(target, data, SETTINGS, store, folder / "out", config, cache=folder / "cache", **options)
