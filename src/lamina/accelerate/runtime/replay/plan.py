"""Recordings of the launch cache as plans of the C++ extension."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.runtime import driver
from lamina.accelerate.runtime.launch_cache import KernelLaunch, Recorder, Recording
from lamina.accelerate.runtime.replay.extension import Slot

_SIZES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "fp32": 4, "fp64": 8}

_ALIGNMENT = 512
"""Of allocations, in bytes, as PyTorch's allocator has it."""

Step = tuple[str, tuple[Any, ...]]
Address = tuple[int, int]
"""A slot and an offset in bytes; with slot -1, the bytes of a value."""


def native_plan(
    module: Any, recorder: Recorder, inputs: Sequence[Tensor], results: Sequence[Tensor | None]
) -> Any | None:
    """The plan of a recording, or None if it has a step or a result that only Python can repeat.

    Args:
        module: the extension.
        recorder: with the steps of a function.
        inputs: of the function; they become the first slots.
        results: of the function, made by its steps or among its inputs.
    """
    steps = recorder.needed_steps(inputs, [each for each in results if each is not None])
    if steps is None:
        return None
    slots = {id(each): number for number, each in enumerate(inputs)}
    first_output = len(inputs)
    translated, keep = list[Step](), list[Tensor]()
    shared = _Shared(steps, recorder, results)
    if shared.bytes:
        translated.append(("empty", ((shared.bytes,), (1,), torch.uint8, shared.device)))
        shared.slot = first_output
        slots[id(shared)] = first_output
    for step in steps:
        if step.out is not None and id(step.out) in shared.offsets:
            continue
        one = _step(step, recorder, slots, shared, keep, first_output)
        if one is None:
            return None
        translated.append(one)
        if step.out is not None:
            slots[id(step.out)] = len(slots)
    return module.plan(translated, [-1 if each is None else slots[id(each)] for each in results], keep)


class _Shared:
    """One allocation for the tensors that only kernels of the plan use, each at an offset: allocating takes long."""

    def __init__(self, steps: Sequence[Recording], recorder: Recorder, results: Sequence[Tensor | None]) -> None:
        elsewhere = {*map(id, results)}
        for step in steps:
            if step.kernel is None:
                elsewhere.update(id(recorder.base(each)[0]) for each in step.args if isinstance(each, Tensor))
                elsewhere.update(id(each) for each in (*step.args, *step.options.values()))
        self.slot, self.bytes = -1, 0
        self.offsets: dict[int, int] = {}
        self.device: torch.device | None = None
        for step in steps:
            if step.empty and step.out is not None and id(step.out) not in elsewhere:
                self.offsets[id(step.out)] = self.bytes
                self.bytes += -(-step.out.untyped_storage().nbytes() // _ALIGNMENT) * _ALIGNMENT
                self.device = step.out.device


def _step(
    step: Recording, recorder: Recorder, slots: dict[int, int], shared: _Shared, keep: list[Tensor], first_output: int,
) -> Step | None:  # fmt: skip
    if step.kernel is not None:
        return _launch(step.kernel, recorder, slots, shared, keep)
    out = step.out
    if step.empty and out is not None:
        return "empty", (tuple(out.shape), out.stride(), out.dtype, out.device)
    arguments = tuple(Slot(slots[id(each)]) if id(each) in slots else each for each in step.args)
    if step.operator is not None:
        schema = step.operator._schema
        named = {name: Slot(slots[id(each)]) if id(each) in slots else each for name, each in step.options.items()}
        for argument in schema.arguments[len(arguments) :]:
            arguments += (named.get(argument.name, argument.default_value),)
        for argument, given in zip(schema.arguments, arguments, strict=True):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(given, Slot) and given < first_output:  # its version would not change
                return None
        return "operator", (schema.name, schema.overload_name, arguments, out is not None)
    if step.addresses:
        return None
    return "callable", (step.function, arguments)


def _launch(
    kernel: KernelLaunch, recorder: Recorder, slots: dict[int, int], shared: _Shared, keep: list[Tensor]
) -> Step | None:
    params, sizes = list[Address](), list[int]()
    for type_, value in zip(kernel.types, kernel.args, strict=True):
        if isinstance(value, Tensor):
            base, offset = recorder.base(value)
            sizes.append(8)
            if id(base) in shared.offsets:
                params.append((shared.slot, shared.offsets[id(base)] + offset))
            elif id(base) in slots:
                params.append((slots[id(base)], offset))
            else:
                keep.append(base)
                params.append((-1, base.data_ptr() + offset))
        elif type_ in _SIZES:
            sizes.append(_SIZES[type_])
            params.append((-1, _bits(type_, value)))
        else:
            return None
    params += [(-1, 0)] * kernel.scratch
    sizes += [8] * kernel.scratch
    if driver.parameter_sizes(kernel.function) != sizes:  # another version of Triton passes others
        return None
    return "launch", (kernel.function, kernel.grid, kernel.block, kernel.shared, kernel.pdl, params)


def _bits(type_: str, value: float) -> int:
    if type_ in ("fp32", "fp64"):
        return int.from_bytes(struct.pack("<f" if type_ == "fp32" else "<d", value), "little")
    return int(value) & ((1 << 8 * _SIZES[type_]) - 1)
