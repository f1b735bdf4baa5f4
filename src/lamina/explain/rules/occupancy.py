"""Grids that leave SMs idle, and kernels whose occupancy is limited by a resource."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain import metrics
from lamina.explain.bounds import limiter
from lamina.explain.launches import Launch
from lamina.explain.view import MATTERS, MODEL, SAVING, View
from lamina.explain.wording import kernel_name, name, percent
from lamina.record import Finding, LayerRun
from lamina.record.wording import listed

FULL = 85.0
"""Percentage of SM cycles with warps from which a kernel fills the device."""
LOW_OCCUPANCY = 30.0
"""Achieved occupancy, in percent, below which an SM has few warps to hide latency."""
FEW_WAVES = 4.0
"""Waves per SM from which a partial last wave (tail effect) is not reported."""


def idle_sms(view: View) -> Iterator[Finding]:
    """SM time without warps over the whole step, with the kernels that cause most of it."""
    idle: list[tuple[float, LayerRun, Launch]] = []
    for row in view.rows:
        for one in view.launches[row.key]:
            busy, waves = one.counters.get(metrics.BUSY), one.counters.get(metrics.WAVES)
            if busy is not None and waves is not None and waves < FEW_WAVES and busy <= FULL:
                idle.append((view.fraction(row, [one]) * (1 - busy / 100), row, one))
    part = sum(saving for saving, _, _ in idle)
    if part < MATTERS:
        return
    idle.sort(key=lambda it: -it[0])
    worst = [f"{name(row)} ({1 - one.counters[metrics.BUSY] / 100:.0%} idle, {_grid(one)})" for _, row, one in idle]
    claim = (
        f"idle SMs cost {percent(part)} of the step because grids do not fill the device: {listed(worst)}; "
        "use a larger batch, smaller tiles or split-K"
    )
    evidence: dict[str, float | str | None] = {
        f"{name(row)} {kernel_name(one.kernel.name)}": saving for saving, row, one in idle
    }
    rows = list(dict.fromkeys(row for _, row, _ in idle))
    about = rows[0] if len(rows) == 1 else None
    yield view.finding("idle SMs", claim, evidence | {SAVING: part}, rows, MODEL, about)


def _grid(one: Launch) -> str:
    waves = one.counters[metrics.WAVES]
    return f"{waves:.2g} waves" if waves >= 1 else f"{waves:.2f} of a wave"


def low_occupancy(view: View) -> Iterator[Finding]:
    """Latency-bound kernels of low occupancy, with the resource that limits it."""
    for row in filter(view.matters, view.rows):
        found = [one for one in view.launches[row.key] if _limited(view, one)]
        part = view.fraction(row, found)
        if part < view.share[row] / 2:
            continue
        longest = max(found, key=lambda one: one.us)
        resource = limiting_resource(longest)
        claim = (
            f"{kernel_name(longest.kernel.name)} of {name(row)} is latency-bound at "
            f"{longest.counters[metrics.OCCUPANCY]:.0f} % occupancy, limited by {resource}{_used(longest, resource)}"
        )
        evidence: dict[str, float | str | None] = {
            "occupancy": longest.counters[metrics.OCCUPANCY],
            "limiter": resource,
            "share of step": part,
            "kernel": longest.kernel.name,
        }
        evidence |= {label: longest.counters.get(metric) for metric, label in metrics.LIMITS.items()}
        yield view.finding("low occupancy", claim, evidence, [row], MODEL, row)


def _limited(view: View, one: Launch) -> bool:
    """Whether a resource limits the occupancy of a latency-bound kernel: low occupancy, and a grid with more blocks."""
    occupancy, waves = one.counters.get(metrics.OCCUPANCY), one.counters.get(metrics.WAVES, 0.0)
    low = occupancy is not None and occupancy < LOW_OCCUPANCY and waves >= 1
    return low and limiting_resource(one) != "" and limiter(one, view.roofs) == "latency"


def limiting_resource(launch: Launch) -> str:
    """The resource that permits the fewest thread blocks per SM; empty if none was recorded."""
    limits = {label: launch.counters[metric] for metric, label in metrics.LIMITS.items() if metric in launch.counters}
    return min(limits, key=lambda label: limits[label], default="")


def _used(one: Launch, resource: str) -> str:
    if resource == "registers" and one.kernel.registers:
        return f" ({one.kernel.registers} per thread)"
    if resource == "shared memory" and one.kernel.shared_bytes:
        return f" ({one.kernel.shared_bytes / 1024:.0f} KiB per block)"
    return ""
