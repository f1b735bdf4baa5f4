"""Table 6.7 from measured P and C, recorded R and simulated S."""

import pytest

from lamina.pipeline.reproduce.measured.judging import NotMeasured
from lamina.pipeline.reproduce.measured.training_speedup import MEASUREMENT, SIMULATED, _shares
from lamina.spec.published import PublishedValue


def value(network: str, quantity: str) -> PublishedValue:
    return PublishedValue(layer=network, quantity=quantity, value=1.0, unit="x")


def rows(network: str, **speedups: list[float]) -> list[dict[str, object]]:
    """Recorded moments of layers, and a synthetic one that counts for nothing."""
    common = {"entry": SIMULATED[network]}
    return [
        common | {"layer": layer.replace("_", "."), "pattern": pattern, "speedup": speedup}
        for layer, own in speedups.items()
        for pattern, speedup in [*(("recorded", one) for one in own), ("iid", 99.0)]
    ]


def test_the_speedup_is_equation_6_1_over_the_moments_of_the_training() -> None:
    share, shares, where = _shares("alexnet")
    assert 0 < share < 1 and sum(shares.values()) == pytest.approx(1) and "H200" in where
    gains = {"features_3": [2.0, 4.0], "features_6": [1.0, 1.0], "features_8": [5.0, 5.0], "features_10": [2.0, 2.0]}
    means = {"features.3": 0.375, "features.6": 1.0, "features.8": 0.2, "features.10": 0.5}  # of 1 / S
    ours, text = MEASUREMENT.values["training speedup"](rows("alexnet", **gains), value("alexnet", "training speedup"))
    after = shares["features.0"] + sum(shares[layer] * mean for layer, mean in means.items())
    assert ours == pytest.approx(1 / (1 - share + share * after)) and "2 moments" in text
    printed, _ = MEASUREMENT.values["P"]([], value("alexnet", "P"))
    assert printed == pytest.approx(100 * share)


def test_layers_of_equal_shape_are_simulated_once() -> None:
    one = {f"features_{number}": [2.0] for number in (2, 5, 7, 10, 12, 17, 19, 24)}
    share, shares, _ = _shares("vgg16")
    ours, _ = MEASUREMENT.values["training speedup"](rows("vgg16", **one), value("vgg16", "training speedup"))
    first = shares["features.0"]
    assert ours == pytest.approx(1 / (1 - share + share * (first + (1 - first) / 2)))


def test_what_is_not_measured_says_what_is_missing() -> None:
    speedup = MEASUREMENT.values["training speedup"]
    with pytest.raises(NotMeasured, match="masks recorded over a training of alexnet: features.3, features.6"):
        speedup(rows("alexnet", features_8=[2.0], features_10=[2.0]), value("alexnet", "training speedup"))
    with pytest.raises(NotMeasured, match="no recorded profile of resnet18"):
        speedup([], value("resnet18", "training speedup"))
