"""Times that something disturbed, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.record.layer_run import LayerRun


def disturbed(rows: Sequence[LayerRun]) -> str:
    """How many times were disturbed, by what for example, and what to do; empty if none were."""
    timed = [row for row in rows if row.timing]
    noted = [row for row in timed if row.disturbed]
    if not noted:
        return ""
    worst = max(noted, key=lambda row: row.timing.median_us if row.timing and row.phase != "step" else 0.0)
    return (
        f"{len(noted)} of {len(timed)} times are unreliable, such as {worst.layer} {worst.phase} "
        f"({worst.disturbance}): measure again on an idle machine (--wait-idle waits for it)"
    )
