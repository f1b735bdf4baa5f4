"""Grids that do not fill the device, and kernels whose blocks keep others out."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain import metrics
from lamina.explain.bounds import limit
from lamina.explain.launches import Launch
from lamina.explain.view import MATTERS, MODEL, STAKE, View
from lamina.explain.wording import kernel_name, name, percent
from lamina.record import Finding, LayerRun
from lamina.record.wording import listed

FULL = 85.0
"""Percent of the multiprocessors' time with warps from which a kernel fills the device."""
CROWDED = 30.0
"""Percent of the warps it could hold below which a multiprocessor has few to hide latency with."""
FEW_WAVES = 4.0
"""Waves from which a last, partly filled one is no longer worth naming."""


def device_not_filled(view: View) -> Iterator[Finding]:
    """Multiprocessor time without a warp: all of the step in one sentence, with the kernels that leave most."""
    empty: list[tuple[float, LayerRun, Launch]] = []
    for row in view.rows:
        for one in view.launches[row.key]:
            busy, waves = one.counters.get(metrics.BUSY), one.counters.get(metrics.WAVES)
            if busy is not None and waves is not None and waves < FEW_WAVES and busy <= FULL:
                empty.append((view.part(row, [one]) * (1 - busy / 100), row, one))
    part = sum(at_stake for at_stake, _, _ in empty)
    if part < MATTERS:
        return
    empty.sort(key=lambda it: -it[0])
    said = [f"{name(row)} ({1 - one.counters[metrics.BUSY] / 100:.0%} empty, {_grid(one)})" for _, row, one in empty]
    claim = (
        f"multiprocessors stand empty for {percent(part)} of the step because grids do not fill them: {listed(said)}; "
        "a larger batch, smaller tiles or splitting the sum would"
    )
    evidence: dict[str, float | str | None] = {
        f"{name(row)} {kernel_name(one.kernel.name)}": at_stake for at_stake, row, one in empty
    }
    rows = list(dict.fromkeys(row for _, row, _ in empty))
    about = rows[0] if len(rows) == 1 else None
    yield view.finding("device not filled", claim, evidence | {STAKE: part}, rows, MODEL, about)


def _grid(one: Launch) -> str:
    waves = one.counters[metrics.WAVES]
    return f"{waves:.2g} waves" if waves >= 1 else f"{waves:.2f} of a wave"


def few_warps(view: View) -> Iterator[Finding]:
    """Kernels held by latency that cannot have more warps, with the resource that keeps them out."""
    for row in filter(view.matters, view.rows):
        found = [one for one in view.launches[row.key] if _starved(view, one)]
        part = view.part(row, found)
        if part < view.share[row] / 2:
            continue
        longest = max(found, key=lambda one: one.us)
        resource = limiter(longest)
        claim = (
            f"{kernel_name(longest.kernel.name)} of {name(row)} waits with {longest.counters[metrics.OCCUPANCY]:.0f} % "
            f"of the warps that fit: {resource} allow no more{_used(longest, resource)}"
        )
        held: dict[str, float | str | None] = {
            "occupancy": longest.counters[metrics.OCCUPANCY],
            "limiter": resource,
            "share of step": part,
            "kernel": longest.kernel.name,
        }
        held |= {label: longest.counters.get(metric) for metric, label in metrics.LIMITS.items()}
        yield view.finding("few warps", claim, held, [row], MODEL, row)


def _starved(view: View, one: Launch) -> bool:
    """Few warps, no unit saturated, and a grid that would have more."""
    occupancy, waves = one.counters.get(metrics.OCCUPANCY), one.counters.get(metrics.WAVES, 0.0)
    few = occupancy is not None and occupancy < CROWDED and waves >= 1
    return few and limiter(one) != "" and limit(one, view.roofs) == "latency"


def limiter(launch: Launch) -> str:
    """The resource that lets fewest blocks onto a multiprocessor; the empty text where none was recorded."""
    limits = {label: launch.counters[metric] for metric, label in metrics.LIMITS.items() if metric in launch.counters}
    return min(limits, key=lambda label: limits[label], default="")


def _used(one: Launch, resource: str) -> str:
    if resource == "registers" and one.kernel.registers:
        return f" ({one.kernel.registers} a thread)"
    if resource == "shared memory" and one.kernel.shared_bytes:
        return f" ({one.kernel.shared_bytes / 1024:.0f} KiB a block)"
    return ""
