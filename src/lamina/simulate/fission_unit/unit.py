"""Simulates a layer's product with packed values and the data fission unit."""

from __future__ import annotations

from dataclasses import replace

from lamina.record import SimRun
from lamina.simulate.fission_unit.config import FissionUnit
from lamina.simulate.fission_unit.kernel import one_pass, tiled_gemm
from lamina.simulate.fission_unit.model import predict
from lamina.simulate.fission_unit.use import use
from lamina.simulate.hierarchy import Device, sample, simulate
from lamina.simulate.hierarchy.unit import Progress
from lamina.simulate.jobs import Unit
from lamina.simulate.workloads import ConvolutionGemm


def fission_unit(
    layer: ConvolutionGemm, device: Device, options: FissionUnit, progress: Progress | None = None
) -> SimRun:
    """Simulate the product of one group in whole tiles; cycles are multiplied by the number of groups.

    In addition to the hierarchy's counters: ``multiplications``, ``conversions``, ``conversion_slots``,
    ``shared_bytes`` of the whole grid, ``predicted_cycles`` of ``predict``, and the fractions of ``use``.

    Raises:
        UsageError: the product does not fit on the device.
        UnsupportedError: a sampled run did not reach a steady state.
    """
    run_on, k = options.on(device), options.kept(layer.k)
    program = tiled_gemm(*options.padded(layer.m, layer.n, k), options, run_on)
    if options.sampling:
        done = sample(program, run_on, sets=options.sets, impl=options.impl, progress=progress).record()
    else:
        done = simulate(program, run_on, impl=options.impl, progress=progress).record()
    each, passes = one_pass(options), int(program.trips.sum())
    counted = {
        **done.counters,
        "multiplications": passes * each.fma,
        "conversions": passes * each.conversions,
        "conversion_slots": passes * each.converting(options.slow),
        "shared_bytes": passes * each.shared_bytes,
        "predicted_cycles": predict(layer.m, layer.n, k, options, run_on).cycles,
    }
    whole = {name: value * layer.groups for name, value in counted.items()}
    rates = use(each, passes, options, run_on, done.cycles, done.counters["dram_bytes"])
    return replace(done, cycles=done.cycles * layer.groups, counters=whole | rates)


UNIT = Unit("fission-unit", FissionUnit, fission_unit, memory=lambda device, options: 0)
