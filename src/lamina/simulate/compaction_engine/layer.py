"""The product of a convolution on a device with a compaction engine, as a unit for networks and sweeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from lamina.errors import UsageError
from lamina.record import SimRun
from lamina.simulate.compaction_engine.config import MOST_ROWS, Engine
from lamina.simulate.compaction_engine.kernel import Kernel, fitting
from lamina.simulate.compaction_engine.stream import Mask
from lamina.simulate.compaction_engine.unit import CONTROLS, SETUPS, Control, simulate_sparse
from lamina.simulate.hierarchy import Device
from lamina.simulate.hierarchy.program import aligned
from lamina.simulate.hierarchy.unit import Impl
from lamina.simulate.jobs import Progress, Unit
from lamina.simulate.workloads import ConvolutionGemm, line_density
from lamina.simulate.workloads.columns import Order
from lamina.simulate.zeros import Zeros
from lamina.spec import Phase

RUN = 32
"""Adjacent columns that are sampled together, the maximum of any tile, so that spatial clusters are preserved."""
FEWEST_IMAGES = 4
TOTALS = ("l2_transactions", "dram_lines")
"""Measures that are counts; the others are rates."""


class CompactionEngine(Engine, Kernel, Zeros):
    """Options of the simulation: zeros, engine, kernel, and control."""

    control: Control = "engine"
    tile_columns: Annotated[int, Field(ge=0, le=32, strict=True)] = 0
    """0: the largest of 1 to 16 with which no entry is evicted while in use (``fitting``)."""
    along: Order = "channel"
    """Order within a column of B, which determines the values of a line: taps of a channel, or channels of a tap."""
    columns: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 4096
    """Columns of B whose zeros are sampled, evenly spaced; they are repeated if the layer has more."""
    sampling: Annotated[bool, Field(strict=True)] = False
    """Simulate a sample of the workgroups and extrapolate."""
    sets: Annotated[int, Field(ge=4, le=10**6, strict=True)] = 12
    """Maximum size of the sample, in multiples of the workgroups resident on the device."""
    impl: Impl = "core"

    @model_validator(mode="before")
    @classmethod
    def _deciding(cls, values: Any) -> Any:
        """A copy without the settings that the control ignores, so that its results are reused."""
        if not isinstance(values, dict):
            return values
        control = values.get("control", "engine")
        if control not in CONTROLS:  # rejected by its field
            return values
        setup = SETUPS[control]
        idle = set[str]() if setup.sees_zeros else {*Zeros.model_fields, "along", "columns"}
        if setup.without:
            idle |= {*Engine.model_fields} - (set() if setup.whole_l2 else {"l2_share"})
        if setup.dense:
            idle |= set(Kernel.model_fields)
        return {key: value for key, value in values.items() if key not in idle}


def mask_of(layer: ConvolutionGemm, options: CompactionEngine) -> Mask:
    """The mask of B, [k, columns], alternating between groups.

    Only the images that the columns need are generated, at least four if the batch has them; a column of the weights'
    gradient needs all.

    Raises:
        UsageError: recorded masks do not match the layer, or a column has more rows than an index counts.
    """
    if layer.k > MOST_ROWS:
        raise UsageError(
            f"{layer.layer}: expected columns of at most {MOST_ROWS} rows, got {layer.k}: "
            "simulate a smaller batch, or a part of the sum"
        )
    if layer.phase == Phase.BACKWARD_WEIGHT:
        values, count = options.mask(layer), min(layer.groups, max(1, options.columns // layer.n))
        own = [layer.columns(values, group, None, options.along) for group in range(count)]
        return np.concatenate(own, axis=1)[:, : options.columns]
    places = layer.n // layer.map[0]
    images = min(layer.map[0], max(FEWEST_IMAGES, -(-options.columns // places)))
    part = replace(layer, n=images * places, map=(images, *layer.map[1:]))
    values = options.mask(part)
    runs = -(-part.n // RUN)
    taken = min(runs, -(-options.columns // RUN))
    firsts = np.linspace(0, runs - 1, taken).astype(int) * RUN
    own = [
        part.columns(values, index % layer.groups, range(first, min(first + RUN, part.n)), options.along)
        for index, first in enumerate(int(each) for each in firsts)
    ]
    return np.concatenate(own, axis=1)


def compaction_engine(
    layer: ConvolutionGemm, device: Device, options: CompactionEngine, progress: Progress | None = None
) -> SimRun:
    """Simulate the product of one group with the engine or a control; cycles are multiplied by the groups.

    Raises:
        UsageError: the product does not fit on the device, or recorded masks do not match the layer.
        SpecError: an invalid engine, or a device whose L2 cannot be split.
        UnsupportedError: a sampled run did not reach a steady state.
    """
    setup = SETUPS[options.control]
    mask = mask_of(layer, options) if setup.sees_zeros else np.ones((layer.k, 1), dtype=np.bool_)
    engine = Engine(**options.model_dump(include=set(Engine.model_fields)))
    kernel = Kernel(**options.model_dump(include=set(Kernel.model_fields) - {"tile_columns"}))
    if not setup.dense:
        wide = options.tile_columns or fitting(layer.k, engine, device)
        kernel = kernel.model_copy(update={"tile_columns": wide})
    run = simulate_sparse(
        layer.m,
        layer.n,
        mask,
        device,
        engine,
        kernel,
        control=options.control,
        impl=options.impl,
        sets=options.sets if options.sampling else None,
        progress=progress,
    )
    found = run.record()
    totals = {*run.counters, *TOTALS}
    counters = {name: value * layer.groups if name in totals else value for name, value in found.counters.items()}
    if not setup.dense:
        counters["tile_columns"] = kernel.tile_columns
    if setup.sees_zeros:
        read = _reads(layer.n, mask.shape[1], kernel.tile_columns)
        counters["density"] = float(np.average(mask.mean(axis=0), weights=read))
        counters["line_density"] = line_density(mask, read)
    return replace(found, cycles=found.cycles * layer.groups, counters=counters)


def _reads(n: int, columns: int, tile: int) -> NDArray[np.int64]:
    """How often each column of a mask occurs among the ``n`` of B, which repeats it by whole tiles."""
    period = aligned(min(columns, n), tile)
    return np.bincount(np.arange(n) % period % columns, minlength=columns)


def _memory(device: Device, options: CompactionEngine) -> int:
    """SRAM bytes of the engine, minus those that it takes from L2."""
    setup = SETUPS[options.control]
    if setup.whole_l2:
        return 0
    taken = device.l2.bytes - options.remaining(device).l2.bytes
    return (0 if setup.without else options.sram_bytes) - taken


UNIT = Unit("compaction-engine", CompactionEngine, compaction_engine, memory=_memory)
