"""Simulate a layer's product with words that hold several values, and a unit that takes them apart."""

from __future__ import annotations

from dataclasses import replace

from lamina.record import SimRun
from lamina.simulate.fission_unit.config import FissionUnit
from lamina.simulate.fission_unit.kernel import one_pass, tiled_gemm
from lamina.simulate.fission_unit.model import predict
from lamina.simulate.hierarchy import Device, sample, simulate
from lamina.simulate.hierarchy.unit import Progress
from lamina.simulate.jobs import Unit
from lamina.simulate.workloads import ConvolutionGemm


def fission_unit(
    layer: ConvolutionGemm, device: Device, options: FissionUnit, progress: Progress | None = None
) -> SimRun:
    """Simulate the product of one group in whole tiles; all groups take that many times its cycles.

    Beside the counts of the hierarchy: ``multiplications``, ``conversions`` and ``shared_bytes`` of the whole grid,
    and what ``predict`` expects, ``predicted_cycles``.

    Raises:
        UsageError: the product does not fit the device.
        UnsupportedError: a sampled run has not reached a steady state.
    """
    run_on = options.on(device)
    program = tiled_gemm(*options.padded(layer.m, layer.n, layer.k), options, run_on)
    if options.sampling:
        done = sample(program, run_on, sets=options.sets, impl=options.impl, progress=progress).record()
    else:
        done = simulate(program, run_on, impl=options.impl, progress=progress).record()
    each, passes = one_pass(options), int(program.trips.sum())
    counted = {
        **done.counters,
        "multiplications": passes * each.fma,
        "conversions": passes * each.conversions,
        "shared_bytes": passes * each.shared_bytes,
        "predicted_cycles": predict(layer.m, layer.n, layer.k, options, run_on).cycles,
    }
    whole = {name: value * layer.groups for name, value in counted.items()}
    return replace(done, cycles=done.cycles * layer.groups, counters=whole)


UNIT = Unit("fission-unit", FissionUnit, fission_unit, memory=lambda device, options: 0)
