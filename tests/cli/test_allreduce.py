"""lamina bench --phase allreduce, as a person types it."""

import pytest
from tests.cli.conftest import Lamina

EXCHANGE = ("--phase", "allreduce")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--processes", "2"), "expected --phase allreduce beside it"),
        ((*EXCHANGE, "--processes", "1"), "expected at least 2, which exchange gradients, got 1"),
        (("--phase", "forward,allreduce"), "expected allreduce without other phases"),
        ((*EXCHANGE, "--clock", "cpu", "--l2", "cold"), "expected no --clock, --l2"),
    ],
)
def test_what_does_not_go_together_is_refused(lamina: Lamina, words: tuple[str, ...], expected: str) -> None:
    result = lamina("bench", "lenet5", "--device", "cpu", *words)
    assert result.exit_code == 2 and expected in " ".join(result.output.split())


def test_torchrun_would_start_the_processes_twice(lamina: Lamina, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = lamina("bench", "lenet5", *EXCHANGE)
    assert result.exit_code == 2 and "use --processes instead of torchrun" in result.output
