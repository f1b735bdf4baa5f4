"""--wait-idle with and without a value, on every command that has it."""

import pytest
from tests.cli.conftest import Lamina

from lamina import measure

QUICK = ("lenet5", "--device", "cpu", "--batch-size", "2", "--repeat", "2")


@pytest.mark.parametrize(
    ("words", "limits"), [((), []), (("--wait-idle",), [600]), (("--wait-idle=7",), [7]), (("--wait-idle", "8"), [8])]
)
def test_the_limit_is_optional(
    lamina: Lamina, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], limits: list[float]
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(measure, "wait_idle", lambda device, limit_s, say: asked.append(limit_s))
    result = lamina("bench", *QUICK, *words, "--phase", "forward")
    assert result.exit_code == 0, result.output
    assert asked == limits


@pytest.mark.parametrize("command", ["profile", "what-if"])
def test_other_measuring_commands_wait_too(lamina: Lamina, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def wait(device: object, limit_s: float, say: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "wait_idle", wait)
    assert lamina(command, *QUICK, "--wait-idle").exit_code == 130


def test_a_negative_limit_is_refused(lamina: Lamina) -> None:
    assert lamina("bench", *QUICK, "--wait-idle=-1").exit_code == 2
