"""L1 bypass of whole convolutions: implicit GEMMs in fp32 whose loads go past L1, against the same through it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from lamina import measure, run
from lamina.accelerate.papers import l1_bypass
from lamina.accelerate.papers.l1_bypass import reference
from lamina.errors import DeviceLostError
from lamina.explain.predictions import Prediction
from lamina.pipeline.what_if.equal import signature
from lamina.pipeline.what_if.stage import Stage
from lamina.pipeline.what_if.swaps import CLOCKS, Swapped, accuracy, parts_of, random_seed
from lamina.pipeline.what_if.swaps import timed as clocked
from lamina.record import WhatIf
from lamina.spec import Phase
from lamina.spec.geometry import Pair

CHANGE = "l1_bypass"
DETAIL = "convolution by an implicit GEMM in fp32, loads by .cg"
PHASES = (Phase.FORWARD.value, Phase.BACKWARD_WEIGHT.value)
UNKNOWN = Prediction(None, "no counters of these kernels: their L1 hit rate is unknown")

Variants = Mapping[tuple[str, bool], Callable[[], Tensor]]
"""From a phase, and whether its loads bypass L1, to the call that computes it."""


def variants(module: nn.Conv2d, x: Tensor) -> Variants:
    """A convolution's forward pass and weight gradient on ``x (N, C, H, W)``, without its bias, both ways."""
    weight, x = module.weight.detach(), x.detach()
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
    (gy,) = random_seed([reference.convolve(x, weight, stride, padding)])

    def call(phase: str, bypass: bool) -> Callable[[], Tensor]:
        if phase == Phase.FORWARD:
            return lambda: l1_bypass.convolve(x, weight, stride, padding, l1_bypass=bypass)
        return lambda: l1_bypass.weight_gradient(x, gy, kernel, stride, padding, l1_bypass=bypass)

    return {(phase, bypass): call(phase, bypass) for phase in PHASES for bypass in (False, True)}


def errors(module: nn.Conv2d, x: Tensor, calls: Variants) -> dict[str, float]:
    """The larger relative error of the two variants against float64, by phase.

    Raises:
        CheckError: it is larger than float32 and plain torch explain.
    """
    weight, x = module.weight.detach(), x.detach()
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
    found = {}
    for phase in PHASES:
        plain, exact = (_plainly(phase, x.to(dtype), weight.to(dtype), kernel, stride, padding)
                        for dtype in (torch.float32, torch.float64))  # fmt: skip
        found[phase] = max(accuracy([calls[phase, bypass]()], [plain], [exact], "fp32") for bypass in (False, True))
    return found


def _plainly(phase: str, x: Tensor, weight: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    y = reference.convolve(x, weight, stride, padding)
    if phase == Phase.FORWARD:
        return y
    (gy,) = random_seed([y])
    return reference.weight_gradient(x, gy, kernel, stride, padding)


def convolutions(stage: Stage) -> Iterator[WhatIf]:
    """Every convolution at once past L1, forward and its weight gradient; of equal ones one is measured."""
    modules = {call.name: call.module for call in stage.network.trace.calls if isinstance(call.module, nn.Conv2d)}
    found: dict[Hashable, dict[str, Swapped]] = {}
    for part in stage.counted(parts_of(stage.network, [(name,) for name in modules if stage.selects([name])])):
        if all(stage.has(CHANGE, DETAIL, part.name, phase) for phase in PHASES):
            continue
        conv = cast(nn.Conv2d, part.module)
        if l1_bypass.refusal(conv.weight.shape, conv.padding, conv.dilation, conv.groups):
            continue
        key = signature(part)
        if key not in found:
            try:
                with stage.guarded(part.name, f"{CHANGE}, {DETAIL}"):
                    found[key] = timed(conv, part.x, stage.repeat([part]))
            except DeviceLostError:
                raise
            except Exception as refused:
                yield stage.refused(CHANGE, f"{DETAIL}: {part.name}", run.one_line(refused))
                continue
        for phase, swapped in found[key].items():
            yield stage.record(CHANGE, DETAIL, part.name, phase, swapped, UNKNOWN)


def timed(module: nn.Conv2d, x: Tensor, repeat: measure.Repeat) -> dict[str, Swapped]:
    """Both variants of each phase: compared with float64, then timed.

    Raises:
        CheckError: a result is wrong.
        RuntimeError, UnsupportedError: a kernel did not run.
    """
    calls = variants(module, x)
    error = errors(module, x, calls)
    times = clocked(measure.clock(CLOCKS[x.device.type][0], x.device), calls, repeat)
    return {phase: Swapped(times[phase, False], times[phase, True], error[phase]) for phase in PHASES}


def _pair(value: tuple[int, ...] | str) -> Pair:
    height, width = cast(Pair, value)
    return height, width
