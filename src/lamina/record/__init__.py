"""What happened: frozen, plain values. No torch here."""

from lamina.record.conversion import Conversion, ConvertedLayer
from lamina.record.coverage import Coverage
from lamina.record.device_state import DeviceState
from lamina.record.environment import Environment
from lamina.record.finding import Finding, Roofline
from lamina.record.kernel_run import Counter, KernelRun
from lamina.record.layer_run import Key, LayerRun, Outcome
from lamina.record.roofs import Roofs
from lamina.record.run import Run, Status
from lamina.record.selection import MODES, Mode, Selection
from lamina.record.sim_run import SimRun
from lamina.record.sparsity import Sparsity
from lamina.record.study import Study, Trial
from lamina.record.timing import Timing, Turns
from lamina.record.training import Epoch
from lamina.record.what_if import WhatIf

__all__ = [
    "MODES",
    "Conversion",
    "ConvertedLayer",
    "Counter",
    "Coverage",
    "DeviceState",
    "Environment",
    "Epoch",
    "Finding",
    "KernelRun",
    "Key",
    "LayerRun",
    "Mode",
    "Outcome",
    "Roofline",
    "Roofs",
    "Run",
    "Selection",
    "SimRun",
    "Sparsity",
    "Status",
    "Study",
    "Timing",
    "Trial",
    "Turns",
    "WhatIf",
]
