"""What anyone needs to measure a run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from lamina.record import LayerRun, Roofs, Run
from lamina.report import units


def date(iso: str) -> str:
    """A time stamp to the minute, or as it stands where it is none."""
    try:
        at = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    zone = at.tzname() or ""
    return f"{at:%Y-%m-%d %H:%M} {zone}".strip()


def facts(run: Run, timed: Sequence[LayerRun], roofs: Roofs | None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Provenance: what anyone needs to measure this again."""
    yield (
        "Run",
        [
            ("command", run.command),
            ("run", run.id),
            ("status", run.status),
            ("started", run.started),
            ("finished", run.finished or "–"),
            ("samples", _span([row.timing.n for row in timed if row.timing])),
            *(("note", note) for note in run.remarks),
        ],
    )
    yield "Machine and software", list(_flat(run.environment))
    if roofs:
        yield (
            "Measured peaks",
            [
                ("device", roofs.device),
                ("date", roofs.date),
                ("copy", units.bandwidth(roofs.copy_gbs)),
                ("read", units.bandwidth(roofs.read_gbs)),
                *((f"GEMM {precision}", units.rate(gflops)) for precision, gflops in roofs.gemm_gflops.items()),
                ("launch", units.duration(roofs.launch_us)),
            ],
        )
    yield "Configuration", list(_flat(run.config))


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Nested configuration as dotted names; what a machine does not have is left out."""
    for key, at in tree.items():
        if isinstance(at, Mapping):
            yield from _flat(at, f"{above}{key}.")
        elif at is not None:
            text = ", ".join(map(str, at)) if isinstance(at, list | tuple) else str(at)
            yield f"{above}{key}", text


def _span(counts: Sequence[int]) -> str:
    if not counts:
        return "–"
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"
