"""The room with the clocks: how long, how much, how fast at best, and on which machine."""

from lamina.measure.attribution import Activity, Attribution, Launch, Range, attribute
from lamina.measure.clocks import Clock, clock, clocks_for, time_each
from lamina.measure.clocks.cpu import CpuClock
from lamina.measure.clocks.cupti import CuptiClock, KernelTimes
from lamina.measure.clocks.events import EventsClock
from lamina.measure.clocks.graph import GraphClock
from lamina.measure.device import resolve
from lamina.measure.environment import environment
from lamina.measure.memory import Peak, peak_memory
from lamina.measure.nvml import sample
from lamina.measure.repeat import Repeat
from lamina.measure.roofs import measure_roofs, roofs
from lamina.measure.settle import Settling, settle
from lamina.measure.stopwatch import Stopwatch

__all__ = [
    "Activity",
    "Attribution",
    "Clock",
    "CpuClock",
    "CuptiClock",
    "EventsClock",
    "GraphClock",
    "KernelTimes",
    "Launch",
    "Peak",
    "Range",
    "Repeat",
    "Settling",
    "Stopwatch",
    "attribute",
    "clock",
    "clocks_for",
    "environment",
    "measure_roofs",
    "peak_memory",
    "resolve",
    "roofs",
    "sample",
    "settle",
    "time_each",
]
