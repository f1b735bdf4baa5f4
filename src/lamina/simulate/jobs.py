"""Simulation jobs: one layer on one device with one unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict

from lamina.errors import LaminaError, MissingError, UsageError, nearest
from lamina.record import SimRun
from lamina.simulate.hierarchy import Device
from lamina.simulate.workloads import ConvolutionGemm
from lamina.spec import Phase
from lamina.spec.grid import Settings as Settings
from lamina.spec.grid import Value as Value

Progress = Callable[[float], None]
"""Called with the completed fraction of a simulation."""
MODULES = {
    "dense": "lamina.simulate.dense",
    "compaction-engine": "lamina.simulate.compaction_engine.layer",
    "fission-unit": "lamina.simulate.fission_unit.unit",
}
"""The module of each unit, which defines ``UNIT``."""
DEVICE = "device."
"""Prefix of the settings of a device."""


class Options(BaseModel):
    """Options of a unit: plain values with defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Unit:
    """A simulated unit. ``run`` and ``memory`` take an instance of ``options``.

    ``memory`` returns the bytes of SRAM that the unit adds to the device, minus those that it takes from L2.
    """

    name: str
    options: type[Options]
    run: Callable[[ConvolutionGemm, Device, Any, Progress | None], SimRun]
    memory: Callable[[Device, Any], int]


def unit(name: str) -> Unit:
    """The unit of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in MODULES:
        raise UsageError(f"unit {name!r} is unknown: {nearest(name, MODULES)}")
    found = import_module(MODULES[name]).UNIT
    assert isinstance(found, Unit)
    return found


@dataclass(frozen=True)
class Job:
    """A layer of a network at one batch size, on one device, simulated with one unit."""

    unit: str
    network: str
    batch: int
    gemm: ConvolutionGemm
    device: Device
    options: Options

    @property
    def layer(self) -> str:
        return self.gemm.layer

    @cached_property
    def config(self) -> dict[str, Value]:
        """All settings that determine the result, flat; those of the device are prefixed with ``device.``"""
        return {
            "unit": self.unit,
            "network": self.network,
            "layer": self.layer,
            "batch": self.batch,
            "gemm": f"{self.gemm.groups}x[{self.gemm.m},{self.gemm.n},{self.gemm.k}]",
            **({"phase": self.gemm.phase.value} if self.gemm.phase != Phase.FORWARD else {}),
            **self.options.model_dump(),
            **{f"{DEVICE}{key}": value for key, value in self.device.settings().items()},
        }

    @cached_property
    def key(self) -> str:
        """Equal for jobs with equal results."""
        return key_of(self.config)

    @property
    def sram_bytes(self) -> int:
        """On-chip memory in bytes: caches and LDS of the device, and what the unit adds."""
        cu, own = self.device.cu, unit(self.unit).memory(self.device, self.options)
        return cu.count * (self.device.l1.bytes + cu.lds_bytes) + self.device.l2.bytes + own


@dataclass(frozen=True)
class Result:
    """The result of a job: a run, or the reason why there is none."""

    job: Job
    run: SimRun | None
    reason: str = ""

    @property
    def microseconds(self) -> float | None:
        return self.run.cycles / self.job.device.clock_ghz / 1e3 if self.run else None

    def to_dict(self) -> dict[str, Value | None]:
        """Plain values: the product, its time, and memory statistics."""
        job, gemm = self.job, self.job.gemm
        row: dict[str, Value | None] = {
            "network": job.network,
            "layer": job.layer,
            "batch": job.batch,
            "unit": job.unit,
            "device": job.device.name,
            "groups": gemm.groups,
            "m": gemm.m,
            "n": gemm.n,
            "k": gemm.k,
            **dict.fromkeys(("cycles", "microseconds", "tflops", "l2_hit_rate", "dram_bytes", "dram_gbs")),
            "relative_error": None,
            "reason": self.reason,
        }
        if self.run is None or self.microseconds is None:
            return row
        moved, reads = self.run.counters["dram_bytes"], self.run.counters["l2_reads"]
        return row | {
            "cycles": self.run.cycles,
            "microseconds": self.microseconds,
            "tflops": gemm.operations / self.microseconds / 1e6,
            "l2_hit_rate": 1 - self.run.counters["l2_misses"] / reads if reads else None,
            "dram_bytes": moved,
            "dram_gbs": moved / self.microseconds / 1e3,
            "relative_error": self.run.relative_error,
        }


def key_of(config: Settings) -> str:
    """A string that is equal for equal configurations, in any order of settings."""
    return json.dumps(dict(config), sort_keys=True)


def execute(job: Job, progress: Progress | None = None) -> Result:
    """Simulate a job. A lamina error or out of memory becomes the reason of a result without a run.

    Raises:
        MissingError: a required package is not installed, so that every job would fail.
    """
    try:
        done = unit(job.unit).run(job.gemm, job.device, job.options, progress)
    except MissingError:
        raise
    except LaminaError as error:
        return Result(job, None, str(error))
    except MemoryError:
        return Result(job, None, f"{job.layer}: out of memory: simulate fewer layers at once, or a smaller batch")
    return Result(job, replace(done, layer=job.layer, device=job.device.name, config=job.config))
