"""Spartan's sparsity monitor: how many zeros activation maps hold during training, at next to no cost."""

from lamina.accelerate.sparsity.monitor.attach import Monitor
from lamina.accelerate.sparsity.monitor.calculator import Calculator, Impl, Ticket
from lamina.accelerate.sparsity.monitor.observation import Observation
from lamina.accelerate.sparsity.monitor.parameters import Pace, Parameters
from lamina.accelerate.sparsity.monitor.report import MapReport
from lamina.accelerate.sparsity.monitor.scheduler import Scheduler
from lamina.accelerate.sparsity.monitor.sparsity_list import Entry, SparsityList
from lamina.accelerate.sparsity.monitor.state import State

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
]
