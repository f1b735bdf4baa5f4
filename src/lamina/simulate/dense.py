"""The dense product of a layer on the memory hierarchy without units: the baseline of every unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from lamina.record import SimRun
from lamina.simulate.hierarchy import Device, gemm, sample, simulate
from lamina.simulate.hierarchy.gemm import TILE, Variant
from lamina.simulate.hierarchy.unit import Impl
from lamina.simulate.jobs import Options, Progress, Unit
from lamina.simulate.workloads import ConvolutionGemm


class Dense(Options):
    """Options of the dense simulation."""

    kernel: Variant = "corrected"
    """``shipped`` reads the first rows of A in every workgroup, a bug of the kernel; ``corrected`` does not."""
    sampling: Annotated[bool, Field(strict=True)] = False
    """Simulate a sample of the workgroups and extrapolate."""
    sets: Annotated[int, Field(ge=4, le=10**6, strict=True)] = 12
    """Maximum size of the sample, in multiples of the workgroups resident on the device."""
    impl: Impl = "core"


def dense(layer: ConvolutionGemm, device: Device, options: Dense, progress: Progress | None = None) -> SimRun:
    """Simulate the product of one group, padded to whole tiles; cycles are multiplied by the number of groups.

    Raises:
        UsageError: the product does not fit on the device.
        UnsupportedError: a sampled run did not reach a steady state.
    """
    program = gemm(*layer.padded(TILE), options.kernel)
    if options.sampling:
        done = sample(program, device, sets=options.sets, impl=options.impl, progress=progress).record()
    else:
        done = simulate(program, device, impl=options.impl, progress=progress).record()
    return replace(done, cycles=done.cycles * layer.groups, counters=_times(done.counters, layer.groups))


def _times(counters: Mapping[str, int | float], groups: int) -> dict[str, int | float]:
    return {name: value * groups for name, value in counters.items()}


UNIT = Unit("dense", Dense, dense, memory=lambda device, options: 0)
