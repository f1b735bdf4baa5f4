"""Six networks, each at its own settings: what is asked of each, and what is kept of those that are finished."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import deft_networks
from benchmarks.deft_networks import ROWS, SMOKE, TASKS, Task, folder_of, samples, shortened
from lamina import build
from lamina.build.data import load
from lamina.pipeline.deft.composition import require_prunable
from lamina.pipeline.deft.records import DeftConfig
from lamina.spec.layer_names import matching_layers

FLOW = {
    "accuracy": {"dense": 90.0, "deft": 89.5, "dense-tuned": 91.0},
    "multiplications": {"dense": 100, "deft": 50},
    "front before tuning": [{"keep ratios": "fc 0.5", "accuracy": 88.0, "speedup": 1.5}],
}


def test_the_six_networks_of_the_paper_have_settings_of_their_own() -> None:
    assert [task.name for task in TASKS] == [
        "alexnet", "flickr-style", "flower-species", "sos-cnn", "cifarnet", "lenet5"
    ]  # fmt: skip
    own = {(t.epochs, t.tuning, t.keep_ratios, t.layers, t.drop, t.learning_rate, t.each, t.batch) for t in TASKS}
    assert len(own) == len(TASKS) and all(len(task.keep_ratios) > 1 for task in TASKS)
    assert "dense" in deft_networks.COMPARED


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("length", deft_networks.LENGTHS)
def test_settings_are_valid_and_name_layers_of_the_network(task: Task, length: str) -> None:
    task = shortened(task, length)
    DeftConfig(keep_ratios=task.keep_ratios, layers=task.layers, align=task.align, max_accuracy_drop=task.drop)
    with torch.device("meta"):
        network = build.models.create(task.zoo, task.classes)
    require_prunable(network, task.layers)
    names = [name for name, module in network.named_modules() if hasattr(module, "weight")]
    assert set(names) - set(matching_layers(task.layers, names)) == {"features.0"}
    assert min(task.epochs, task.tuning) >= 1 and (length != "smoke" or task.most <= SMOKE)


def test_samples_are_those_of_the_largest_classes_and_few_of_each(tmp_path: Path) -> None:
    y = np.array([0] * 3 + [1] * 9 + [2] * 6 + [3] * 5)
    x = np.arange(len(y), dtype=np.uint8)[:, None, None].repeat(4, axis=1).repeat(4, axis=2)
    np.savez(tmp_path / "whole.npz", x_train=x, y_train=y, x_test=x, y_test=y, class_names=np.array(list("abcd")))
    task = Task("some", "lenet5", "whole.npz", 2, 1, 1, (0.5,), (), 1, 0.5, 1e-3, each=4)
    made = samples(task, tmp_path, tmp_path)
    train, test = load(made, "train"), load(made, "test")
    assert train.classes == ("b", "c") and train.y.tolist() == [0] * 4 + [1] * 4
    assert train.x[:, 0, 0, 0].tolist() == [3, 4, 5, 6, 12, 13, 14, 15]
    assert test.y.tolist() == [0] * 9 + [1] * 6


def row(name: str, impl: str, us: float) -> dict[str, Any]:
    return {
        "workload": name, "layer": "whole", "phase": "forward", "impl": impl, "precision": "fp32", "layout": "nchw",
        "batch": 1, "timing": "cpu", "l2": "warm", "rel_error": 0.0, "median_us": us, "q1_us": us, "q3_us": us, "n": 1,
    }  # fmt: skip


class Recorded:
    """Flows and timings that are asked for, in place of those that take long; ``broken`` ones fail."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.asked, self.broken, self.folder, self.patch = list[str](), set[str](), folder, patch
        patch.setattr(deft_networks, "flow_of", self.flow)
        patch.setattr(deft_networks, "rows_of", self.rows)

    def flow(self, task: Task, *rest: object) -> dict[str, Any]:
        self.asked.append(f"flow {task.name}")
        if task.name in self.broken:
            raise RuntimeError("out of memory")
        return dict(FLOW)

    def rows(self, task: Task, *rest: object) -> dict[str, Any]:
        self.asked.append(f"rows {task.name}")
        return {"rows": [row(task.name, "dense", 4.0), row(task.name, "deft", 2.0)]}

    def run(self, *words: str) -> dict[str, Any]:
        """The newest results file after a run with these words."""
        self.asked.clear()
        line = ["deft_networks", "smoke", "--data", "-", "--device", "cpu", "--work", str(self.folder / "work")]
        self.patch.setattr("sys.argv", [*line, "--output", str(self.folder / "out"), *words])
        deft_networks.main()
        path = max((self.folder / "out").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        found = json.loads(path.read_text())
        assert isinstance(found, dict)
        return found


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorded:
    return Recorded(monkeypatch, tmp_path)


def test_finished_networks_are_kept_and_the_others_follow(recorded: Recorded) -> None:
    first = recorded.run("--only", "lenet5")
    assert recorded.asked == ["flow lenet5", "rows lenet5"] and first["claim"] == "deft_networks_smoke_part"
    assert first["summary"]["flow: lenet5"]["front before tuning"] == FLOW["front before tuning"]
    assert first["summary"]["speedup over fp32 dense: deft, fp32, batch 1"]["lenet5"] == 2
    assert first["summary"]["points of accuracy lost to the dense network tuned as long"] == {"lenet5": 1.5}
    whole = recorded.run()
    assert "flow lenet5" not in recorded.asked and len(recorded.asked) == 10
    assert whole["claim"] == "deft_networks_smoke"
    assert list(dict.fromkeys(one["workload"] for one in whole["rows"])) == [task.name for task in TASKS]
    assert len(recorded.run()["rows"]) == 12 and recorded.asked == []


def test_after_the_limit_nothing_is_started(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="no network is finished"):
        recorded.run("--limit", "0")
    assert recorded.asked == [] and "lenet5: not started after 0 s: flow.json" in capsys.readouterr().out
    recorded.run("--only", "lenet5")
    task = shortened(TASKS[-1], "smoke")
    (folder_of(task, recorded.folder / "work", "cpu") / ROWS).unlink()
    recorded.run("--only", "lenet5")
    assert recorded.asked == ["rows lenet5"]


def test_a_network_that_fails_is_told_and_tried_again(recorded: Recorded) -> None:
    recorded.broken = {"cifarnet"}
    found = recorded.run("--only", "cifarnet", "--only", "lenet5")
    assert found["summary"]["undone: cifarnet"] == "flow.json: RuntimeError: out of memory"
    recorded.broken = set()
    recorded.run("--only", "cifarnet", "--only", "lenet5")
    assert recorded.asked == ["flow cifarnet", "rows cifarnet"]


def test_other_settings_are_other_work(tmp_path: Path) -> None:
    one, other = (folder_of(shortened(TASKS[-1], length), tmp_path, "cpu") for length in ("short", "long"))
    assert one != other and one.name.startswith("lenet5-")
