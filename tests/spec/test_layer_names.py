"""Layers by patterns of their names."""

import pytest

from lamina.errors import UsageError
from lamina.spec.layer_names import matching_layers

NAMES = ["stem", "stages.0.conv", "stages.0.norm", "stages.10.conv", "relu#2", "fc"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], NAMES),
        (["stages.*"], ["stages.0.conv", "stages.0.norm", "stages.10.conv"]),
        (["stages.?.conv"], ["stages.0.conv"]),
        (["stages.[0-4].*", "fc"], ["stages.0.conv", "stages.0.norm", "fc"]),
        (["fc", "stem"], ["stem", "fc"]),
        (["relu#2"], ["relu#2"]),
    ],
)
def test_names_that_match_keep_their_order(patterns: list[str], expected: list[str]) -> None:
    assert matching_layers(patterns, NAMES) == expected


def test_a_name_with_brackets_matches_itself() -> None:
    assert matching_layers(["conv[1]"], ["conv[1]", "conv1"]) == ["conv[1]", "conv1"]


def test_a_pattern_without_a_match_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"'stages.0.cov' matches no layer: did you mean 'stages.0.conv'\?"):
        matching_layers(["stem", "stages.0.cov"], NAMES)
