import pytest

from lamina.explain.wording import listed, ms, name, percent, phases

from ..report.records import bench


def test_a_row_is_its_layer_and_phase() -> None:
    assert name(bench()[0]) == "conv1 forward"


@pytest.mark.parametrize(("count", "text"), [(1, "a"), (4, "a, b, c, d"), (6, "a, b, c, d and 2 more")])
def test_long_lists_end(count: int, text: str) -> None:
    assert listed("abcdef"[:count]) == text


def test_numbers() -> None:
    assert [percent(part) for part in (0.034, 0.34, 1.2)] == ["3.4%", "34%", "120%"]
    assert ms(1_234_567) == "1,234.57 ms"
    assert (phases([bench()[0]]), phases(bench()[:3])) == ("1 phase is", "3 phases are")
