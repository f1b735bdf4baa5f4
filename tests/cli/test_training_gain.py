"""lamina simulate training, on a run that was measured and one that was watched."""

import json
import os
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

from lamina.record import LayerRun, Run, Sparsity, Timing
from lamina.store import open_store

LENET = ("simulate", "training", "lenet5", "--batch", "1", "--set", "device.cu.count=2", "--bins", "2")

DATE = "2026-01-02T03:04:05+00:00"


def stored(run: str, verb: str) -> Run:
    return Run(run, verb, "lenet5", f"lamina {verb}", DATE, verb, {}, {"date": DATE})


@pytest.fixture
def runs(lamina: Lamina) -> tuple[str, ...]:
    """A benchmark and a monitored training."""
    with open_store(Path(os.environ["LAMINA_DB"])) as store:
        store.begin(stored("measured", "bench"))
        for place, (layer, us) in enumerate((("features.0", 20.0), ("features.3", 60.0), ("flatten", 20.0))):
            store.add(
                "measured",
                LayerRun(layer, "convolution", place, "forward", "dense", "fp32", "nchw", 1, "gpu", ((1, 1, 1, 1),),
                         (1, 1, 1, 1), 1, 1, 1, "ok", timing=Timing("graph", "-", us, us, us, 3)),
            )  # fmt: skip
        store.begin(stored("watched", "sparsity"))
        store.add_sparsity("watched", [Sparsity("features.1", "output", 0, 0.3)])
    return "--bench", "measured", "--sparsity", "watched"


def test_a_training_is_put_together(lamina: Lamina, runs: tuple[str, ...]) -> None:
    result = lamina(*LENET, *runs, "--format", "json")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    first, second = done["layers"]
    assert done["share"] == pytest.approx(0.8) and done["bound"] == pytest.approx(5.0)
    assert first["observed"] is None and first["speedup"] == 1.0
    assert second["observed"] == "features.1" and second["sparsity"] == [0.0, 1.0]
    assert second["speedup"] == pytest.approx(second["speedups"][1])
    assert done["speedup"] == pytest.approx(1 / (0.4 + 0.6 / second["speedup"]))
    table = lamina(*LENET, *runs).stdout
    assert "at most 5.00x" in table and "dense" in table and "75%" in table


def test_what_is_missing_is_told(lamina: Lamina, runs: tuple[str, ...]) -> None:
    for wrong, message in (
        (("--point", "precisionn=fp32"), "did you mean 'precision'"),
        (("--point", "precision=bf16"), "expected a time of features.0"),
        (("--phases", "backwards"), "'backwards' is unknown"),
        (("--sparsity", "measured"), "no observations of"),
        (("--bench", "none"), "none"),
    ):
        result = lamina(*LENET, *runs, *wrong)
        assert result.exit_code == 2 and message in result.stderr, (wrong, result.output)
