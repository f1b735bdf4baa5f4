"""Counts on their way to the host."""

import pytest
import torch

from lamina.accelerate.training.sparsity_monitor import Calculator, Ticket
from lamina.errors import LaminaError, UsageError


def counted(calculator: Calculator, iteration: int = 0, **nonzeros: int) -> Ticket:
    maps = []
    for name, number in nonzeros.items():
        x = torch.zeros(1, 4, 6)
        x.view(-1)[:number] = 1
        maps.append(calculator.count(name, x))
    return Ticket(iteration, tuple(maps), (iteration,) * len(maps))


def drained(calculator: Calculator) -> list[tuple[str, int, int]]:
    found = [each for ticket, words in calculator.drain() for each in ticket.read(words)]
    return [(each.name, each.iteration, each.nonzeros) for each in found]


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_counts_arrive_in_the_order_in_which_they_were_sent(impl: str) -> None:
    calculator = Calculator(impl)  # type: ignore[arg-type]
    for iteration in range(3):
        calculator.send(counted(calculator, iteration, a=iteration, b=10))
    assert drained(calculator) == [("a", 0, 0), ("b", 0, 10), ("a", 1, 1), ("b", 1, 10), ("a", 2, 2), ("b", 2, 10)]
    assert [*calculator.arrived()] == []


def test_counts_without_their_flag_are_not_read() -> None:
    calculator = Calculator()
    calculator.send(counted(calculator, a=5))
    calculator.send(counted(calculator, a=6))
    first = calculator.in_flight[0]
    first.flag.zero_()  # as it is while the device has not come to it
    assert [*calculator.arrived()] == []
    with pytest.raises(LaminaError, match="another stream"):
        calculator.drain()
    first.flag.fill_(1)
    assert drained(calculator) == [("a", 0, 5), ("a", 0, 6)]


def test_slots_are_used_again() -> None:
    calculator = Calculator()
    for _ in range(20):
        calculator.send(counted(calculator, a=1))
        assert len([*calculator.arrived()]) == 1
    assert len(calculator._free) == 1


def test_any_number_of_maps_and_only_what_is_asked_for() -> None:
    calculator = Calculator()
    everything = counted(calculator, **{f"m{number}": number % 25 for number in range(150)})
    asked = Ticket(3, everything.maps[7::10], everything.processes[7::10])
    calculator.send(asked)
    found = calculator.drain()
    assert [asked.sparsities(words) for _, words in found] == [[1 - number % 25 / 24 for number in range(7, 150, 10)]]
    read = [(each.name, each.iteration, each.nonzeros) for ticket, words in found for each in ticket.read(words)]
    assert read == [(f"m{number}", 3, number % 25) for number in range(7, 150, 10)]
    calculator.send(Ticket(4, (), ()))
    assert calculator.drain() == []


def test_misuse_is_refused() -> None:
    with pytest.raises(UsageError, match="impl"):
        Calculator("cuda")  # type: ignore[arg-type]
    calculator = Calculator("torch")
    counted(calculator, a=1)
    with pytest.raises(UsageError, match="one monitor for each device"):
        calculator.count("b", torch.zeros(1, 2, 3, device="meta"))
