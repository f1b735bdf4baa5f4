"""Errors as one line."""

import pytest

from lamina.run import one_line


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("out of memory\n  of the device"), "out of memory of the device"),
        (KeyError("name"), "KeyError: 'name'"),
        (RuntimeError("long " * 100), ("long " * 100)[:197] + "..."),
        (AssertionError(), "AssertionError: "),
    ],
)
def test_errors_on_one_line(error: Exception, text: str) -> None:
    assert one_line(error) == text


def test_an_error_without_a_message_says_where_it_was_raised() -> None:
    assert one_line(raised(AssertionError())) == "AssertionError: at test_messages.py:10"
