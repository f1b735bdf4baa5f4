"""Event-driven simulation of a GPU's memory hierarchy: wavefronts in compute units, L1, TLBs, L2 and DRAM."""

from lamina.simulate.hierarchy.bounds import bounds
from lamina.simulate.hierarchy.config import Device, preset, presets, read_device
from lamina.simulate.hierarchy.gemm import gemm
from lamina.simulate.hierarchy.memory import DramMemory, Memory
from lamina.simulate.hierarchy.program import Phase, Program, occupancy
from lamina.simulate.hierarchy.sampling import Estimate, sample
from lamina.simulate.hierarchy.unit import Simulation, simulate
from lamina.simulate.hierarchy.validate import (
    Reference,
    Validation,
    parse_reference,
    read_reference,
    shipped_reference,
    validate,
)

__all__ = [
    "Device",
    "DramMemory",
    "Estimate",
    "Memory",
    "Phase",
    "Program",
    "Reference",
    "Simulation",
    "Validation",
    "bounds",
    "gemm",
    "occupancy",
    "parse_reference",
    "preset",
    "presets",
    "read_device",
    "read_reference",
    "sample",
    "shipped_reference",
    "simulate",
    "validate",
]
