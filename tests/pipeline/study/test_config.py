"""Limits of a study, and the methods that it tries."""

import pytest

from lamina.accelerate.registry import known_options
from lamina.errors import UsageError
from lamina.pipeline.study.config import StudyConfig, lossless
from lamina.spec.method import METHODS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": "trian", "epochs": 1}, "goal 'trian' is unknown"),
        ({"precisions": ("fp8",)}, "precision 'fp8' is unknown"),
        ({"modes": ("compile",)}, "mode 'compile' is unknown"),
        ({"max_accuracy_drop": -1.0}, "points from 0 to 100"),
        ({"batch": 0}, "batch and calibration"),
        ({"budget_s": 0.0}, "positive time"),
        ({"max_memory": 0}, "at least 1 byte"),
        ({"goal": "train"}, "at least 1 epoch"),
        ({"methods": ("circulant[blocksize=4]",)}, "blocksize"),
    ],
)
def test_wrong_limits_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StudyConfig(**options)  # type: ignore[arg-type]


def test_every_method_is_tried_but_kernels_of_papers() -> None:
    tried = {one.name for one in StudyConfig(goal="infer", epochs=1).offers()}
    assert tried == {info.name for info in METHODS.values() if not info.published}


def test_stored_weights_do_not_train() -> None:
    tried = {one.name for one in StudyConfig(goal="train", epochs=1).offers()}
    assert "weight-only" not in tried and "circulant" in tried


def test_without_fine_tuning_a_projection_is_not_tried() -> None:
    assert "circulant" not in {one.name for one in StudyConfig(goal="infer").offers()}


def test_own_methods_go_before() -> None:
    config = StudyConfig(methods=("circulant[block_size=8]",))
    assert [str(one) for one in config.offers()] == ["circulant[block_size=8]"]


def test_what_a_configuration_lacks_is_left_out() -> None:
    assert str(known_options("eliminated[keep=0.5,impl=kernel,tile=16x32]")) == "eliminated[keep=0.5,impl=kernel]"
    assert str(known_options("sparse[impl=auto,density=0.4]")) == "sparse[impl=auto]"
    assert str(known_options("dense")) == "dense"


def test_methods_that_keep_results() -> None:
    assert lossless("dense") and lossless("fused[impl=kernel]") and lossless("sparse[impl=auto,density=0.1]")
    assert not lossless("circulant[block_size=64]") and not lossless("weight-only[format=half]")
