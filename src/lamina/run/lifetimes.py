"""Size and lifetime of every tensor of a walk through a network."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lamina.run.arena import Buffer, MemoryPlan, plan
from lamina.run.loss import has_gradient
from lamina.run.protocols import Slot, Trace


def memory_plan(trace: Trace, backward: bool) -> MemoryPlan:
    """The arena's plan, from the size and lifetime of every tensor in the walk.

    Step ``i`` runs layer ``i`` forward; with ``backward``, step ``2n - 1 - i`` runs it again and then backward.
    """
    calls, end = trace.calls, 2 * len(trace.calls) - 1
    producer = {number: i for i, call in enumerate(calls) for number in call.outputs}
    readers: dict[int, list[int]] = {slot.number: [] for slot in trace.slots}
    for i, call in enumerate(calls):
        for number in call.inputs:
            readers[number].append(i)
    buffers: dict[int, tuple[int, int]] = {}
    gradients = []
    for slot in trace.slots:
        first = producer.get(slot.number, 0)
        uses = [end - i if backward else i for i in readers[slot.number]]
        last = max([first, *uses, *([len(calls)] if backward and slot.number in trace.outputs else [])])
        owner = _owner(trace.slots, slot)
        buffers[owner] = (
            min(first, buffers.get(owner, (first, 0))[0]),
            max(last, buffers.get(owner, (0, last))[1]),
        )
        if backward and has_gradient(slot.dtype) and slot.number in producer:
            ends_here = slot.number in trace.outputs or not readers[slot.number]
            born = len(calls) if ends_here else end - max(readers[slot.number])
            gradients.append(Buffer(f"gradient {slot.number}", _nbytes(slot), born, end - first))
    values = [
        Buffer(f"value {number}", _nbytes(trace.slots[number]), *lifetime)
        for number, lifetime in buffers.items()
        if number in producer
    ]
    return plan([*values, *gradients])


def _owner(slots: Sequence[Slot], slot: Slot) -> int:
    while slot.base is not None:
        slot = slots[slot.base]
    return slot.number


def _nbytes(slot: Slot) -> int:
    return prod(slot.shape) * slot.dtype.itemsize
