"""lamina train: checkpoints that would be lost or missed are told, and no accuracy is printed where there is none."""

from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

NETS = """
from torch import nn

def scores():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 10))

def maps():
    return nn.Conv2d(1, 2, 1)
"""
QUICK = ("--input-size", "1x2x2", "--data", "synthetic", "--epochs", "1", "--device", "cpu")


@pytest.fixture(scope="module")  # it is imported once
def nets(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("nets") / "nets_of_train.py"
    path.write_text(NETS)
    return str(path)


def test_a_checkpoint_that_is_missing_or_replaced_is_told_before_the_training(
    lamina: Lamina, nets: str, tmp_path: Path
) -> None:
    words = ("train", f"{nets}:scores", *QUICK, "--checkpoint", str(tmp_path / "state.safetensors"))
    missing, replaced, ended = (lamina(*words, *more) for more in (("--resume",), (), ("--resume",)))
    assert {one.exit_code for one in (missing, replaced, ended)} == {0}
    for done, note in (
        (missing, "no checkpoint at {} yet: the training begins anew"),
        (replaced, "{} exists: it is replaced, at the latest after the first epoch; --resume goes on from it"),
    ):
        assert note.format(words[-1]) in done.stderr.split("epoch 1: ")[0]
    assert "begins anew" not in ended.stderr and "is replaced" not in ended.stderr


@pytest.mark.parametrize(("network", "accuracy"), [("scores", True), ("maps", False)])
def test_without_class_scores_no_accuracy_is_printed(
    lamina: Lamina, nets: str, network: str, accuracy: bool
) -> None:
    done = lamina("train", f"{nets}:{network}", *QUICK)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("epoch 1: "))
    assert done.exit_code == 0 and line.count(", accuracy ") == 2 * accuracy and "nan" not in line
