"""Imports the raw page of Nsight Compute as a run: kernels and counters by NVTX range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lamina.errors import Fault, SpecError
from lamina.measure.counters.parse import OWN, Profiled, Table, read
from lamina.measure.recorded.recording import Recording, key_of, layer_and_phase, layer_indices, row_of, run_of
from lamina.measure.repeat import summarize
from lamina.record import Counter, Coverage, KernelRun, Key
from lamina.spec.counters import METRICS

NO_RANGE = "(no range)"
"""The layer of kernels outside of all ranges."""

_TIMES = tuple(f"gpu__time_duration.{rollup}" for rollup in ("sum", "avg", "max", "min"))
_REGISTERS, _SHARED = "launch__registers_per_thread", "launch__shared_mem_per_block"
_ATTRIBUTE = "device__attribute_"
_COUNTER = re.compile(r"(?!device|numa|nvlink|profiler|c2clink|launch)[a-z0-9]+__\S+")
_EXTREME = re.compile(r"\.(min|max)(\.|$)")
_KNOWN = {metric.name for metric in METRICS}
_BASES = {name.partition(".")[0] for name in _KNOWN}


def from_ncu_csv(text: str, content: bytes, name: str) -> Recording:
    """The run in a raw page.

    Args:
        text: the output of ncu.
        content: the bytes of the file; the run id is derived from them.
        name: the file's name.

    The layer is the name of the innermost range, without a suffix ``/forward``, ``/backward_data`` or
    ``/backward_weight``, which gives the phase.

    Errors:
        SpecError: no raw page, a truncated line, or no durations.
    """
    table = read(text, name)
    if not table.lines:
        raise SpecError(name, "expected kernels below the columns, got none")
    time = next((metric for metric in _TIMES if metric in table.columns), None)
    if time is None:
        raise SpecError(name, f"expected durations: profile with --metrics {_TIMES[0]} among others")
    counters = [column for column in table.columns if _is_counter(column)]
    rows_of: dict[Key, list[Profiled]] = {}
    for (line, _), one in zip(table.lines, table.profiled([*counters, time, _REGISTERS, _SHARED]), strict=True):
        if one.metrics[time][0] is None:
            raise SpecError(name, [Fault(f"expected a number under {time}, got none", line)])
        rows_of.setdefault(_key(one), []).append(one)
    launches: list[KernelRun] = []
    readings: list[Counter] = []
    for key, members in rows_of.items():
        for i, one in enumerate(members):
            launches.append(_launch(key, i, one, time))
            kept = (metric for metric in one.metrics if metric not in (_REGISTERS, _SHARED))
            readings += [Counter(key, i, metric, *one.metrics[metric]) for metric in kept]
    _, first = next(table.rows())
    device = first.get(f"{_ATTRIBUTE}display_name") or "unknown GPU"
    index = layer_indices(rows_of)
    l2 = _l2(table)
    rows = tuple(
        row_of(key, index[key.layer], device, summarize([_sum_us(members, time)], "ncu", l2, len(members)))
        for key, members in rows_of.items()
    )
    config = {"format": "ncu", "metrics": counters}
    date = datetime.now(UTC).isoformat(timespec="seconds")  # the table has none
    run = run_of(content, name, date, _environment(table, first, device), config, _notes(l2))
    return Recording(run, rows, tuple(launches), tuple(readings), _coverage(launches))


def _is_counter(column: str) -> bool:
    """Whether to keep a column: ncu adds sum, mean, minimum and maximum; only those that lamina knows are kept."""
    if not _COUNTER.fullmatch(column) or column.partition(".")[0] in _BASES:
        return column in _KNOWN
    return not _EXTREME.search(column)


def _key(one: Profiled) -> Key:
    return key_of(*layer_and_phase(one.range.removeprefix(OWN))) if one.range else key_of(NO_RANGE, "forward")


def _launch(key: Key, invocation: int, one: Profiled, time: str) -> KernelRun:
    registers, shared = (one.metrics[metric][0] for metric in (_REGISTERS, _SHARED))
    return KernelRun(
        key,
        invocation,
        one.name,
        one.grid,
        one.block,
        None if registers is None else int(registers),
        None if shared is None else int(shared),
        _sum_us([one], time),
    )


def _sum_us(members: list[Profiled], time: str) -> float:
    return sum(one.metrics[time][0] or 0.0 for one in members) / 1e3


def _coverage(launches: list[KernelRun]) -> Coverage:
    """If some kernels have a range, those without one are not attributed."""
    layers = {launch.key.layer for launch in launches}
    outside = NO_RANGE if len(layers) > 1 else ""
    unattributed: dict[str, float] = {}
    attributed = [launch for launch in launches if launch.key.layer != outside]
    for launch in launches:
        if launch.key.layer == outside:
            unattributed[launch.name] = unattributed.get(launch.name, 0.0) + launch.duration_us
    like = key_of("", "")
    time = sum(launch.duration_us for launch in attributed)
    return Coverage(like.impl, like.precision, like.layout, like.batch, len(attributed), time, unattributed)


def _l2(table: Table) -> str:
    """State of the L2 cache before each kernel: ncu flushes it by default, and prints a warning otherwise."""
    if any("uncontrolled GPU caches" in line for line in table.banner):
        return "warm"
    return "cold" if any(line.startswith("==PROF== Connected") for line in table.banner) else "-"


def _notes(l2: str) -> tuple[str, ...]:
    return ("whether caches were flushed before each kernel is unknown",) if l2 == "-" else ()


def _environment(table: Table, cells: Mapping[str, str], device: str) -> Mapping[str, Any]:
    def whole(attribute: str) -> int | None:
        value, _ = table.reading(0, cells, _ATTRIBUTE + attribute)
        return None if value is None else int(value)

    return {
        "device": device,
        "device_kind": "cuda",
        "compute_capability": cells.get("CC"),
        "sm_count": whole("multiprocessor_count"),
        "l2_bytes": whole("l2_cache_size"),
        "memory_bytes": whole("total_memory"),
    }
