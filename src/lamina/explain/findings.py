"""All rules asked about all settings of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lamina.explain.bounds import Bound
from lamina.explain.launches import Launches
from lamina.explain.roofline import rooflines
from lamina.explain.rules import RULES
from lamina.explain.rules.batches import algorithm_changes
from lamina.explain.steps import WHOLE, shares, steps
from lamina.explain.view import View, stake
from lamina.record import Counter, Finding, KernelRun, LayerRun, Roofs
from lamina.record.comparison import by_setting

FIRST = ("dominant layers", "limits of the step", "failed")
"""Rules whose findings come before those that rank by what they could save."""


def findings(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
) -> tuple[Finding, ...]:
    """Everything the rules find, setting by setting: what is most of the step, then by what could be saved most.

    A finding's evidence names the part of the step that acting on it could save at most as ``at stake``; those
    without one come last, in the order of the rules. Rules stay silent where the roofs, kernels or counters they
    need are absent.
    """
    looked_at = views(rows, roofs, kernels, counters)
    found = [finding for view in looked_at for finding in ranked([it for rule in RULES for it in rule(view)])]
    return (*found, *algorithm_changes(looked_at))


def bounds(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
) -> dict[LayerRun, Bound]:
    """What limits every row that has a time; the whole step has no limit of its own."""
    return {row: it for view in views(rows, roofs, kernels, counters) for row, it in view.bounds.items()}


def views(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
) -> list[View]:
    """One view for each setting."""
    share, placed = shares(rows), rooflines(rows, roofs)
    launches = Launches(kernels, counters)
    networks = {network.setting: network for network in steps(rows)}
    return [
        View(
            setting=setting,
            rows=tuple(row for row in members if row.phase != WHOLE),
            network=networks[setting],
            share=share,
            roofline=placed,
            roofs=roofs,
            launches=launches,
        )
        for setting, members in by_setting(rows).items()
    ]


def ranked(found: Sequence[Finding]) -> list[Finding]:
    """Findings by what they could save, after those that say what the step consists of."""
    return sorted(found, key=lambda finding: (finding.rule not in FIRST, -stake(finding)))
