"""Layers that make the GPU unusable, in the Python API."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lamina import measure, pipeline
from lamina.build import Target, from_external
from lamina.build.models.external import External
from lamina.errors import DeviceLostError
from lamina.pipeline.guard import Guard
from lamina.pipeline.watch import Working
from lamina.record import Roofs
from lamina.spec import Workload
from lamina.store import Store

CPU = torch.device("cpu")
ROOFS = Roofs("test", "2026-01-01", 1, {"torch": torch.__version__}, 10.0, 8.0, {"fp32": 100.0}, 5.0, 5.0)
ASSERT = "CUDA error: device-side assert triggered"


class Asserts(nn.Module):
    """Reads past the end of a tensor, which a GPU answers with a device-side assertion."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(1, device=x.device)[torch.full((1,), 5, device=x.device)]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), Asserts(), nn.Linear(6, 4))


def network() -> Target:
    return from_external("asserts", lambda: External(build(), (8,)))


def test_a_layer_is_announced_and_an_error_that_does_not_stay_passes() -> None:
    events: list[object] = []
    guard = Guard("net", "dense", CPU, events.append)
    with pytest.raises(IndexError), guard("conv", "check"):
        raise IndexError
    with guard("conv", "forward"):
        pass
    assert events == [Working("net", "conv", "dense", "check"), Working("net", "conv", "dense", "forward")]


@pytest.mark.parametrize("error", [None, RuntimeError(ASSERT)])
def test_a_lost_gpu_names_the_layer(monkeypatch: pytest.MonkeyPatch, error: RuntimeError | None) -> None:
    monkeypatch.setattr(measure, "lost", lambda device: ASSERT)
    guard = Guard("net", "dense", CPU, lambda event: None)

    def run() -> None:
        with guard("conv", "check"):
            if error:
                raise error

    with pytest.raises(DeviceLostError, match="conv made the GPU unusable") as lost:
        run()
    assert (lost.value.layer, lost.value.reason, lost.value.__cause__) == ("conv", ASSERT, error)


def test_what_was_measured_is_kept_and_the_rest_follows_without_the_layer(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "roofs", lambda device, cache_dir, refresh=False: ROOFS)
    running: list[Working] = []

    def lost(device: torch.device) -> str | None:
        return ASSERT if (running[-1].layer, running[-1].stage) == ("1", "check") else None

    def watch(event: object) -> None:
        if isinstance(event, Working):
            running.append(event)

    workload = Workload(repeat=2, batch=(2,), check=False)
    monkeypatch.setattr(measure, "lost", lost)
    with pytest.raises(DeviceLostError):
        pipeline.bench(network(), workload, store, cache=tmp_path, watch=watch)
    (this,) = store.runs()
    rows = store.layers(this.id)
    assert this.status == "failed" and {row.layer for row in rows if row.timing} == {"2"}
    assert {(row.layer, row.phase, row.reason) for row in rows if row.outcome == "failed"} == {
        ("1", "forward", ASSERT), ("1", "backward_data", ASSERT)
    }  # fmt: skip

    monkeypatch.setattr(measure, "lost", lambda device: None)
    done = pipeline.bench(
        network(), workload, store, cache=tmp_path, resume=True, lost={("1", "dense"): ASSERT}, watch=watch
    )
    rows = store.layers(done.id)
    assert done.id == this.id and done.status == "done"
    assert {row.layer for row in rows if row.timing} == {"0", "2"}
    (step,) = (row for row in rows if row.phase == "step")
    assert step.outcome == "failed" and step.reason == "it contains 1, which must not run"


@pytest.mark.gpu
def test_a_device_side_assertion_is_one_failed_layer(tmp_path: Path) -> None:
    import json
    import os
    import subprocess
    import sys

    words = [sys.executable, "-m", "lamina", "bench", "tests.pipeline.test_guard:build", "--input-size", "8", "-b", "2"]
    places = {"LAMINA_DB": str(tmp_path / "lamina.db"), "LAMINA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [*words, "--device", "cuda", "--repeat", "2", "--no-check", "--format", "json"],
        capture_output=True, text=True, check=False, env={**os.environ, **places},
    )  # fmt: skip
    assert done.returncode == 1 and "going on without it in a new process" in done.stderr, done.stderr
    rows = json.loads(done.stdout)
    assert {row["layer"] for row in rows if row["outcome"] == "ok"} == {"0", "2"}
    assert all("device-side assert" in row["reason"] for row in rows if row["layer"] == "1")
