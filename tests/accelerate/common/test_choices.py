import pytest

from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError


def test_an_unknown_word_is_refused_with_the_nearest_one() -> None:
    check_choice("impl", "kernel", ("kernel", "reference"))
    with pytest.raises(UsageError, match="impl 'kernl' is unknown: .*kernel"):
        check_choice("impl", "kernl", ("kernel", "reference"))
