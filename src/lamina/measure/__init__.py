"""Clocks, kernel traces, hardware counters, memory, measured peaks, and the provenance of a measurement."""

from lamina.measure.attribution import Activity, Attribution, Launch, Range, attribute
from lamina.measure.clocks import Clock, clock, clocks_for, time_each
from lamina.measure.clocks.cpu import CpuClock
from lamina.measure.clocks.cupti import CuptiClock
from lamina.measure.clocks.events import EventsClock
from lamina.measure.clocks.graph import GraphClock
from lamina.measure.collectives import allreduce_times
from lamina.measure.device import lost, resolve
from lamina.measure.energy import NO_COUNTER, EnergyMeter, energy_j
from lamina.measure.environment import environment
from lamina.measure.exchange import GradientExchange
from lamina.measure.interference import Meter, wait_idle
from lamina.measure.interleaved import interleaved
from lamina.measure.kernels import KernelSession, KernelTimes, Tally, record_kernels
from lamina.measure.memory import Peak, free_bytes, peak_memory
from lamina.measure.nvml import sample
from lamina.measure.ranges import HostTimes, MemoryUse, nvtx_range, profiler_capture
from lamina.measure.repeat import Repeat, summarize
from lamina.measure.roofs import launch_overhead_us, measure_roofs, roofs
from lamina.measure.settle import Settling, settle
from lamina.measure.stopwatch import Stopwatch
from lamina.measure.subprocesses import run_subprocess
from lamina.measure.turns import alone, beside, pause, share_device, waited_s

__all__ = [
    "NO_COUNTER",
    "Activity",
    "Attribution",
    "Clock",
    "CpuClock",
    "CuptiClock",
    "EnergyMeter",
    "EventsClock",
    "GradientExchange",
    "GraphClock",
    "HostTimes",
    "KernelSession",
    "KernelTimes",
    "Launch",
    "MemoryUse",
    "Meter",
    "Peak",
    "Range",
    "Repeat",
    "Settling",
    "Stopwatch",
    "Tally",
    "allreduce_times",
    "alone",
    "attribute",
    "beside",
    "clock",
    "clocks_for",
    "energy_j",
    "environment",
    "free_bytes",
    "interleaved",
    "launch_overhead_us",
    "lost",
    "measure_roofs",
    "nvtx_range",
    "pause",
    "peak_memory",
    "profiler_capture",
    "record_kernels",
    "resolve",
    "roofs",
    "run_subprocess",
    "sample",
    "settle",
    "share_device",
    "summarize",
    "time_each",
    "wait_idle",
    "waited_s",
]
