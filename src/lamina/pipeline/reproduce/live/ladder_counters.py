"""Hardware counters of every version of the dissertation's kernels, and sizes of the compiled kernels: table 7.5 and
figures 7.8 to 7.11. Counters are read in a second process under Nsight Compute."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from lamina import measure
from lamina.accelerate.papers.circulant_ladder.functional import kernels_for
from lamina.accelerate.papers.circulant_ladder.rungs import NAMES, PHASES, RUNGS, SOURCE
from lamina.accelerate.runtime.nvrtc import compiled
from lamina.measure import counters
from lamina.measure.counters.join import base_name
from lamina.pipeline.reproduce.live.ladder import BLOCK_SIZES, LAYERS, rung_calls
from lamina.pipeline.reproduce.measured.judging import Rows, Scope

TIMEOUT_S = 900.0
_TIME, _INSTRUCTIONS = "gpu__time_duration.sum", "smsp__inst_executed.sum"
_SUMS = {
    "instructions": _INSTRUCTIONS,
    "read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "written_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
}
_MEANS = {
    "ipc": "sm__inst_executed.avg.per_cycle_active",
    "eligible_warps": "smsp__warps_eligible.avg.per_cycle_active",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
METRICS = (_TIME, *_SUMS.values(), *_MEANS.values())
"""What figures 7.8 to 7.11 show, by the names that this tool gives it."""

_INSTRUCTION_BYTES = 16  # on every chip since Volta


def counts(scope: Scope) -> Rows:
    """Counters of every layer and block size, of layer C alone if the scope is quick. It needs a GPU.

    Raises:
        MissingError: there is no GPU, or counters cannot be read here.
        LaminaError: reading them failed or took too long.
    """
    target = architecture(measure.resolve("cuda"))
    static = static_instructions(compiled(SOURCE.read_text(encoding="utf-8"), target))
    names = ("C",) if scope.quick else (*LAYERS,)
    return [row for name in names for k in BLOCK_SIZES for row in counted(name, k, static)]


def run_counted(name: str, k: int) -> None:
    """Run each phase of each rung once where Nsight Compute looks, in a range of its name."""
    device = measure.resolve("cuda")
    tensors = LAYERS[name].tensors(k, device)
    made = kernels_for(tensors["x"])
    for rung in RUNGS:
        calls = rung_calls(rung, made, tensors)
        for phase in PHASES:
            calls[phase]()
            with measure.profiler_capture(device), measure.nvtx_range(f"lamina/{rung.name}/{phase}"):
                calls[phase]()


def counted(name: str, k: int, static: Mapping[str, int]) -> list[dict[str, Any]]:
    """Rows of counters: each phase of each rung of a layer, over all its kernels and over the ladder's own.

    Of its own, whose instructions in the binary ``static`` tells, rows also have table 7.5's ratio of these to those
    that ran.

    Raises:
        MissingError: counters cannot be read here.
        LaminaError: reading them failed or took too long.
    """
    child = [sys.executable, "-c", f"from {__name__} import run_counted; run_counted({name!r}, {k})"]
    session = counters.profile(child, METRICS, timeout_s=TIMEOUT_S)
    rows = []
    for rung in RUNGS:
        for phase in PHASES:
            there = [one for one in session.profiled if one.range == f"lamina/{rung.name}/{phase}"]
            own = [one for one in there if base_name(one.name) in NAMES]
            size = sum(static[kernel] for kernel in {base_name(one.name) for one in own})
            common = {"layer": name, "block_size": k, "rung": rung.name, "phase": phase}
            mine = totals(own)
            ratio = size / mine["instructions"] if mine["instructions"] else None
            rows.append(common | {"kernels": "all"} | totals(there))
            rows.append(common | {"kernels": "own"} | mine | {"static_instructions": size, "static_to_dynamic": ratio})
    return rows


def totals(profiled: Sequence[counters.Profiled]) -> dict[str, Any]:
    """Counters of several launches: sums, and of rates the mean over their time; none where one launch lacks it."""
    times = [one.metrics[_TIME][0] for one in profiled]
    found: dict[str, Any] = {"launches": len(profiled), "time_us": _total(times, 1e-3)}
    for figure, metric in _SUMS.items():
        found[figure] = _total([one.metrics[metric][0] for one in profiled])
    for figure, metric in _MEANS.items():
        rates = [one.metrics[metric][0] for one in profiled]
        products = [None if t is None or r is None else t * r for t, r in zip(times, rates, strict=True)]
        whole, time = _total(products), _total(times)
        found[figure] = whole / time if whole is not None and time else None
    return found


def _total(values: Iterable[float | None], scale: float = 1.0) -> float | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None) * scale


def static_instructions(binary: bytes) -> dict[str, int]:
    """Instructions of each kernel of a compiled source, those that fill up its last line included.

    Read off the sizes of its sections: ``.text.NAME`` in an ELF file of 64 bits.
    """
    table, entry, count, names = (
        struct.unpack_from(kind, binary, at)[0] for kind, at in (("<Q", 0x28), ("<H", 0x3A), ("<H", 0x3C), ("<H", 0x3E))
    )
    sections = [struct.unpack_from("<IIQQQQ", binary, table + place * entry) for place in range(count)]
    first = sections[names][4]
    found = {}
    for name, *_, size in sections:
        text = binary[first + name : binary.index(b"\0", first + name)].decode()
        if text.startswith(".text."):
            found[text.removeprefix(".text.")] = size // _INSTRUCTION_BYTES
    return found


def architecture(device: torch.device) -> str:
    """What the kernels are compiled for on a GPU."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
