"""Counts on their way to the host."""

import pytest
import torch

from lamina.accelerate.sparsity.monitor import Calculator, Ticket
from lamina.accelerate.sparsity.monitor.reference import as_matrices
from lamina.errors import LaminaError, UsageError


def ticket(name: str, row: int, iteration: int = 0) -> Ticket:
    return Ticket(name, row, 4, 6, iteration, iteration)


def map_of(nonzeros: int) -> torch.Tensor:
    x = torch.zeros(1, 4, 6)
    x.view(-1)[:nonzeros] = 1
    return as_matrices(x)


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_counts_arrive_in_the_order_in_which_they_were_sent(impl: str) -> None:
    calculator = Calculator(impl)  # type: ignore[arg-type]
    for iteration in range(3):
        rows = [calculator.count(name, map_of(nonzeros)) for name, nonzeros in (("a", iteration), ("b", 10))]
        calculator.send([ticket(name, row, iteration) for name, row in zip("ab", rows, strict=True)])
    found = [(t.name, t.iteration, o.nonzeros) for t, o in calculator.drain()]
    assert found == [("a", 0, 0), ("b", 0, 10), ("a", 1, 1), ("b", 1, 10), ("a", 2, 2), ("b", 2, 10)]
    assert [*calculator.arrived()] == []


def test_counts_without_their_flag_are_not_read() -> None:
    calculator = Calculator()
    calculator.send([ticket("a", calculator.count("a", map_of(5)))])
    calculator.send([ticket("a", calculator.count("a", map_of(6)))])
    first = calculator._under_way[0]
    first.flag.zero_()  # as it is while the device has not come to it
    assert [*calculator.arrived()] == []
    with pytest.raises(LaminaError, match="another stream"):
        calculator.drain()
    first.flag.fill_(1)
    assert [found.nonzeros for _, found in calculator.drain()] == [5, 6]


def test_slots_are_used_again() -> None:
    calculator = Calculator()
    for _ in range(20):
        calculator.send([ticket("a", calculator.count("a", map_of(1)))])
        assert len([*calculator.arrived()]) == 1
    assert len(calculator._free) == 1


def test_any_number_of_maps_and_only_what_is_asked_for() -> None:
    calculator = Calculator()
    rows = {f"m{number}": calculator.count(f"m{number}", map_of(number % 25)) for number in range(150)}
    asked = [name for name in rows if name.endswith("7")]
    calculator.send([ticket(name, rows[name]) for name in asked])
    assert [(t.name, found.nonzeros) for t, found in calculator.drain()] == [(n, int(n[1:]) % 25) for n in asked]
    calculator.send([])
    assert calculator.drain() == []


def test_misuse_is_refused() -> None:
    with pytest.raises(UsageError, match="impl"):
        Calculator("cuda")  # type: ignore[arg-type]
    calculator = Calculator("torch")
    calculator.count("a", map_of(1))
    with pytest.raises(UsageError, match="one monitor for each device"):
        calculator.count("b", torch.zeros(1, 2, 3, device="meta"))
