"""Figures of hardware counters, one bar for each layer. Quantities have nvprof's names where it had one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.report import units
from lamina.report.figures.bars import ABSENT, Quantity, Series, layer_bars
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot

UNCOUNTED = "the run has no counters: 'lamina profile --counters full' reads them"


@dataclass(frozen=True)
class Counted:
    """One counted quantity: its name among the counters, how a person calls it, its colour, lane and weight."""

    name: str
    title: str
    colour: str
    lane: int = 0
    weight: float = 1.0


def uncounted(scene: Scene, names: Sequence[str]) -> str:
    """Why there is nothing to draw: which counters a figure needs, or that there are none at all."""
    if not scene.material.counted:
        return UNCOUNTED
    return f"nothing here was counted that shows it: {', '.join(names)}"


def missing(scene: Scene) -> dict[str, str]:
    """The label of each layer without values."""
    return {layer: ABSENT if scene.launches(layer) else "no kernels" for layer in scene.shown}


def draws(quantity: Quantity, *counted: Counted) -> Callable[[Scene], Plot | str]:
    """How to draw some counted quantities as bars by layer."""

    def draw(scene: Scene) -> Plot | str:
        series = [
            Series(
                one.title,
                one.colour,
                [None if value is None else one.weight * value for value in scene.counts(one.name)],
                one.lane,
            )
            for one in counted
        ]
        plot = layer_bars(list(scene.shown), series, quantity, missing=missing(scene))
        return plot or uncounted(scene, [one.name for one in counted])

    return draw


PERCENT = ((1.0, "%"),)
_SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_TENSOR = "sm__ops_path_tensor_src_{}.sum"

fp_operations = draws(
    Quantity("FP32 operations", units.COUNTS),
    Counted(_SASS.format("ffma"), "multiply-add (2 each)", "series1", weight=2.0),
    Counted(_SASS.format("fmul"), "multiply", "series2"),
    Counted(_SASS.format("fadd"), "add", "series3"),
)
tensor_operations = draws(
    Quantity("tensor core operations", units.COUNTS),
    Counted(_TENSOR.format("tf32_dst_fp32"), "TF32", "series1"),
    Counted(_TENSOR.format("bf16_dst_fp32"), "bfloat16", "series2"),
    Counted(_TENSOR.format("fp16"), "float16", "series3"),
)
ipc = draws(
    Quantity("instructions per cycle and SM", ((1.0, ""),)),
    Counted("executed_ipc", "executed", "series1"),
    Counted("issued_ipc", "issued", "series2", lane=1),
)
occupancy = draws(
    Quantity("occupancy", PERCENT, most=100.0),
    Counted("achieved_occupancy", "achieved", "series1", weight=100.0),
    Counted("sm__maximum_warps_per_active_cycle_pct", "possible with these kernels", "series2", lane=1),
)
eligible_warps = draws(
    Quantity("eligible warps per cycle and SM", ((1.0, ""),)),
    Counted("eligible_warps_per_cycle", "eligible warps", "series1"),
)
hit_rates = draws(
    Quantity("hit rate", PERCENT, most=100.0),
    Counted("tex_cache_hit_rate", "L1", "series1"),
    Counted("l2_tex_hit_rate", "L2", "series2", lane=1),
)
near_transactions = draws(
    Quantity("transactions", units.COUNTS),
    Counted("shared_load_transactions", "shared loads", "series1"),
    Counted("shared_store_transactions", "shared stores", "series2"),
    Counted("tex_cache_transactions", "L1 sectors", "series3", lane=1),
)
near_throughput = draws(
    Quantity("throughput", units.FLOWS),
    Counted("shared_load_throughput", "shared loads", "series1"),
    Counted("shared_store_throughput", "shared stores", "series2"),
    Counted("tex_cache_throughput", "L1", "series3", lane=1),
)
far_transactions = draws(
    Quantity("transactions of 32 bytes", units.COUNTS),
    Counted("l2_tex_read_transactions", "L2 reads", "series1"),
    Counted("l2_tex_write_transactions", "L2 writes", "series7"),
    Counted("dram_read_transactions", "DRAM reads", "series2", lane=1),
    Counted("dram_write_transactions", "DRAM writes", "series4", lane=1),
)
far_throughput = draws(
    Quantity("throughput", units.FLOWS),
    Counted("l2_tex_read_throughput", "L2 reads", "series1"),
    Counted("l2_tex_write_throughput", "L2 writes", "series7"),
    Counted("dram_read_throughput", "DRAM reads", "series2", lane=1),
    Counted("dram_write_throughput", "DRAM writes", "series4", lane=1),
)
