import pytest

from lamina.record.wording import label, listed, place


@pytest.mark.parametrize(("count", "text"), [(1, "a"), (4, "a, b, c, d"), (6, "a, b, c, d and 2 more")])
def test_long_lists_end(count: int, text: str) -> None:
    assert listed("abcdef"[:count]) == text


def test_a_setting_is_named_by_its_values() -> None:
    assert place((("precision", "bf16"), ("batch", "16"), ("clock", None))) == "bf16 batch 16"
    assert place(()) == ""
    assert label((("precision", "bf16"), ("batch", "16"))) == "bf16 · batch 16"
