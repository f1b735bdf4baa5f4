"""How busy each unit is."""

from __future__ import annotations

from lamina.report.figures.counters import uncounted
from lamina.report.figures.heat import layer_heat
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot

UNITS = {
    "single_precision_fu_utilization": "FP32 units",
    "alu_fu_utilization": "arithmetic",
    "tensor_utilization": "tensor cores",
    "special_fu_utilization": "special",
    "ldst_fu_utilization": "load and store",
    "cf_fu_utilization": "branches",
    "tex_fu_utilization": "texture",
    "issue_slot_utilization": "issue slots",
    "shared_utilization": "shared memory",
    "l2_utilization": "L2",
    "dram_utilization": "DRAM",
    "sm_efficiency": "SMs with a warp",
}
"""nvprof's names, and how the columns are called."""


def utilization(scene: Scene) -> Plot | str:
    """The use of each unit in percent of its peak, by layer."""
    columns = [(title, scene.counts(name)) for name, title in UNITS.items()]
    return layer_heat(list(scene.shown), columns, 100.0, "%") or uncounted(scene, list(UNITS))
