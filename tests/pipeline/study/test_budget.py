"""The time of a study, by a clock that the test turns."""

from lamina.pipeline.study.budget import Budget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_ends_at_its_part_of_the_budget() -> None:
    clock = Clock()
    budget = Budget(100, clock)
    with budget.stage("first", 0.3):
        assert budget.left == 30 and budget.covers(30) and not budget.covers(31)
        clock.now = 31
        assert budget.over
    assert budget.left == 69 and budget.covers(69)
    with budget.stage("second", 0.5):
        assert budget.left == 19
    assert budget.spent == {"first": 31, "second": 0}


def test_without_a_budget_there_is_always_time() -> None:
    clock = Clock()
    budget = Budget(None, clock)
    with budget.stage("first", 0.3):
        clock.now = 1e9
        assert not budget.over and budget.covers(1e9)
    assert budget.spent == {"first": 1e9}


def test_what_failed_took_its_time() -> None:
    clock = Clock()
    budget = Budget(10, clock)
    try:
        with budget.stage("first"):
            clock.now = 4
            raise ValueError
    except ValueError:
        pass
    assert budget.spent == {"first": 4} and budget.left == 6


def test_a_late_stage_has_its_part_of_what_is_left() -> None:
    clock = Clock()
    budget = Budget(100, clock)
    clock.now = 70
    with budget.stage("layers", 0.75, least=0.5):
        assert budget.left == 15
        with budget.part(0.2):
            assert budget.left == 3
            clock.now = 74
            assert budget.over
        assert budget.left == 11
        clock.now = 90
        with budget.part(0.5):
            assert budget.over
    with budget.stage("early", 0.99, least=0.5):
        assert budget.left == 9
    with Budget(None, clock).stage("first", 0.1, least=0.1), Budget(None, clock).part(0.1):
        assert not Budget(None, clock).over
