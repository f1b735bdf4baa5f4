"""Every figure by its id, in the order in which a report shows them."""

from __future__ import annotations

from lamina.errors import UsageError, nearest
from lamina.report.figures import counters
from lamina.report.figures.batches import by_batch
from lamina.report.figures.energy import energy
from lamina.report.figures.figure import Template
from lamina.report.figures.kernels import kernels_by_time
from lamina.report.figures.layer_times import time_figure
from lamina.report.figures.material import Scene
from lamina.report.figures.memory import allocated, moved
from lamina.report.figures.plot import Plot
from lamina.report.figures.roofline import roofline_figure
from lamina.report.figures.share import time_shares
from lamina.report.figures.speedup import speedup
from lamina.report.figures.stalls import stalls
from lamina.report.figures.timeline import timeline
from lamina.report.figures.utilization import utilization

TOPICS = {
    "time": "Time",
    "arithmetic": "Arithmetic",
    "waiting": "Waiting",
    "memory": "Memory",
    "kernels": "Kernels",
}
"""What figures are about, and what a report calls it."""
COUNTED = "Hardware counters of each kernel, read by Nsight Compute"
SUMMED = f"{COUNTED}, added up over a layer's kernels."
AVERAGED = f"{COUNTED}, averaged over a layer's kernels by their time."


def _time(scene: Scene) -> Plot | str:
    return time_figure(scene.rows, scene.material.shares) or "nothing has a time"


def _roofline(scene: Scene) -> Plot | str:
    material = scene.material
    if material.roofs is None:
        return "the peaks of the machine were not measured"
    plot = roofline_figure(scene.rows, material.roofs, material.rooflines, material.shares)
    return plot or "no row has both operations and a byte count"


FIGURES = {
    it.id: it
    for it in (
        Template(
            "time",
            "Time of each layer",
            "Layers in order of execution, phases stacked; medians of repeated measurements. In a network of many "
            "layers equal blocks are added up in one bar.",
            "time",
            _time,
            by_phase=False,
            wide=True,
            by_layer=False,
        ),
        Template(
            "batches",
            "Time by batch size",
            "Time of each layer at every batch size and in every setting.",
            "time",
            by_batch,
            by_setting=False,
            wide=True,
        ),
        Template(
            "share",
            "Share of the time",
            "What part of the layers' time each kind of layer takes, from the medians.",
            "time",
            time_shares,
            by_setting=False,
            wide=True,
            by_layer=False,
        ),
        Template(
            "speedup",
            "Speedup against another run",
            "Median time there over median time here; hollow where the quartile ranges meet or samples are few.",
            "time",
            speedup,
            wide=True,
        ),
        Template(
            "energy",
            "Energy of each layer",
            "Joules of one execution, phases stacked, by the GPU's energy counter while each phase is repeated alone; "
            "idle power included.",
            "time",
            energy,
            wide=True,
        ),
        Template(
            "roofline",
            "Roofline",
            "Achieved rate over operations per byte, under the peaks measured on this machine. The larger a mark, the "
            "larger its share of the step.",
            "arithmetic",
            _roofline,
            by_phase=False,
            wide=True,
            by_layer=False,
        ),
        Template(
            "fp-operations",
            "FP32 operations",
            f"Additions, multiplications and multiply-adds outside tensor cores. {SUMMED}",
            "arithmetic",
            counters.fp_operations,
        ),
        Template(
            "tensor-operations",
            "Tensor core operations",
            f"Operations of the tensor cores by the type of their inputs. {SUMMED}",
            "arithmetic",
            counters.tensor_operations,
        ),
        Template(
            "utilization",
            "Use of each unit",
            f"Percent of each unit's peak rate; a dash stands where nothing was counted. {AVERAGED}",
            "arithmetic",
            utilization,
            wide=True,
        ),
        Template(
            "stalls",
            "What warps wait for",
            f"Shares of the time in which warps do not issue. Reasons are read in different passes, so those of short "
            f"kernels need not add up to 100 %. {AVERAGED}",
            "waiting",
            stalls,
            wide=True,
        ),
        Template(
            "ipc",
            "Instructions per cycle",
            f"Warp instructions per cycle and multiprocessor; issued ones include repetitions. {AVERAGED}",
            "waiting",
            counters.ipc,
        ),
        Template(
            "occupancy",
            "Occupancy",
            f"Warps on a multiprocessor, of the most it can hold: reached, and what registers, shared memory and "
            f"block sizes permit. {AVERAGED}",
            "waiting",
            counters.occupancy,
        ),
        Template(
            "eligible-warps",
            "Eligible warps",
            f"Warps that could issue in a cycle, of all schedulers of a multiprocessor. {AVERAGED}",
            "waiting",
            counters.eligible_warps,
            wide=True,
        ),
        Template(
            "hit-rates",
            "Cache hit rates",
            f"Sectors found in L1 and in L2; L1 does not see what the tensor memory accelerator loads. {AVERAGED}",
            "memory",
            counters.hit_rates,
        ),
        Template(
            "dram-bytes",
            "Bytes through DRAM",
            f"Beside the bytes that a layer must at least read and write: its inputs, outputs and weights. {SUMMED}",
            "memory",
            moved,
        ),
        Template(
            "near-transactions",
            "Transactions near the cores",
            f"Wavefronts of shared memory, and sectors of 32 bytes looked up in L1. {SUMMED}",
            "memory",
            counters.near_transactions,
        ),
        Template(
            "near-throughput",
            "Throughput near the cores",
            f"Bytes per second of shared memory and of L1. {AVERAGED}",
            "memory",
            counters.near_throughput,
        ),
        Template(
            "far-transactions",
            "Transactions near DRAM",
            f"Sectors of 32 bytes between L1 and L2, and between L2 and DRAM. {SUMMED}",
            "memory",
            counters.far_transactions,
        ),
        Template(
            "far-throughput",
            "Throughput near DRAM",
            f"Bytes per second between L1 and L2, and between L2 and DRAM. {AVERAGED}",
            "memory",
            counters.far_throughput,
        ),
        Template(
            "allocated",
            "Memory allocated",
            "What the whole process had allocated while each layer ran and when it ended, from the allocator; of "
            "several phases the highest.",
            "memory",
            allocated,
            wide=True,
        ),
        Template(
            "timeline",
            "Kernels in order",
            "Durations of the kernels end to end, in the order of a training step; layers alternate in shade. Idle "
            "time between kernels is not in it.",
            "kernels",
            timeline,
            wide=True,
            by_layer=False,
        ),
        Template(
            "kernels",
            "Kernels by time",
            "Time of each kernel over all its launches, with their number, as the profiler timed them.",
            "kernels",
            kernels_by_time,
            wide=True,
            by_layer=False,
        ),
    )
}


def template(id_: str) -> Template:
    """The figure of this id. Raises UsageError where there is none."""
    if id_ not in FIGURES:
        raise UsageError(f"there is no figure {id_!r}: {nearest(id_, FIGURES)}")
    return FIGURES[id_]
