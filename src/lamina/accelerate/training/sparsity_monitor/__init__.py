"""Spartan's sparsity monitor: samples the density of activation maps during training with little overhead."""

from typing import TYPE_CHECKING

from lamina.lazy import lazy

if TYPE_CHECKING:
    from lamina.accelerate.training.sparsity_monitor.attach import Monitor
    from lamina.accelerate.training.sparsity_monitor.calculator import Calculator, Impl, Ticket
    from lamina.accelerate.training.sparsity_monitor.observation import Observation
    from lamina.accelerate.training.sparsity_monitor.parameters import Pace, Parameters
    from lamina.accelerate.training.sparsity_monitor.report import MapReport
    from lamina.accelerate.training.sparsity_monitor.scheduler import Scheduler
    from lamina.accelerate.training.sparsity_monitor.sparsity_list import Entry, SparsityList
    from lamina.accelerate.training.sparsity_monitor.state import State
    from lamina.accelerate.training.sparsity_monitor.wiring import monitor_of, wire

__all__ = [
    "Calculator",
    "Entry",
    "Impl",
    "MapReport",
    "Monitor",
    "Observation",
    "Pace",
    "Parameters",
    "Scheduler",
    "SparsityList",
    "State",
    "Ticket",
    "monitor_of",
    "wire",
]

_MODULES = {
    "attach": ("Monitor",),
    "calculator": ("Calculator", "Impl", "Ticket"),
    "observation": ("Observation",),
    "parameters": ("Pace", "Parameters"),
    "report": ("MapReport",),
    "scheduler": ("Scheduler",),
    "sparsity_list": ("Entry", "SparsityList"),
    "state": ("State",),
    "wiring": ("monitor_of", "wire"),
}

# Parameters and schedules need no PyTorch.
lazy(__name__, {name: f"{__name__}.{module}:{name}" for module, names in _MODULES.items() for name in names})
