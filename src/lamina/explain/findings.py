"""Applies every rule to every setting of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lamina.explain.bounds import Bound
from lamina.explain.launches import Launches
from lamina.explain.roofline import rooflines
from lamina.explain.rules import RULES
from lamina.explain.rules.batches import algorithm_changes
from lamina.explain.steps import WHOLE, NetworkStep, shares, steps
from lamina.explain.view import View, potential_saving
from lamina.record import Counter, Finding, KernelRun, LayerRun, Roofs
from lamina.record.comparison import Setting, by_setting

SUMMARY_RULES = ("dominant layers", "bottlenecks", "failed")
"""Rules whose findings come before those ranked by potential saving."""
IDLE = 0.2
"""Fraction of the step from which an idle GPU is the first finding: faster kernels would save less than it."""


def findings(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
    power_limit_w: float | None = None,
) -> tuple[Finding, ...]:
    """All findings, setting by setting: first the summary of the step, then by potential saving, largest first.

    ``evidence["potential saving"]`` is the largest fraction of the step time that acting on a finding can save.
    Findings without it come last, in the order of the rules. A rule yields nothing if the measured peaks, kernels or
    counters that it needs are absent. ``power_limit_w`` is what the device may draw.
    """
    per_setting = views(rows, roofs, kernels, counters, power_limit_w)
    found = [finding for view in per_setting for finding in ranked([it for rule in RULES for it in rule(view)])]
    return (*found, *algorithm_changes(per_setting))


def bounds(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
) -> dict[LayerRun, Bound]:
    """What limits every row that has a time; the row of the whole step has no limiter of its own."""
    return {row: it for view in views(rows, roofs, kernels, counters) for row, it in view.bounds.items()}


def views(
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
    power_limit_w: float | None = None,
) -> list[View]:
    """One view for each setting."""
    share, roofline = shares(rows), rooflines(rows, roofs)
    launches = Launches(kernels, counters)
    networks = {network.setting: network for network in steps(rows)}
    return [
        View(
            setting=setting,
            rows=tuple(row for row in members if row.phase != WHOLE),
            network=networks[setting],
            share=share,
            roofline=roofline,
            roofs=roofs,
            launches=launches,
            wall=_wall(setting, networks),
            power_limit_w=power_limit_w,
        )
        for setting, members in by_setting(rows).items()
    ]


def _wall(setting: Setting, networks: Mapping[Setting, NetworkStep]) -> LayerRun | None:
    """The whole step by the wall clock, in this setting or in one that differs only in the clock."""

    def fixed(setting: Setting) -> Setting:
        return tuple((axis, at) for axis, at in setting if axis not in ("clock", "l2"))

    rows = [networks[setting].whole, *(it.whole for it in networks.values() if fixed(it.setting) == fixed(setting))]
    return next((row for row in rows if row and row.timing and row.timing.clock == "wall"), None)


def ranked(found: Sequence[Finding]) -> list[Finding]:
    """Findings sorted by potential saving, after those that summarize the step; an idle GPU comes before all."""
    return sorted(found, key=lambda it: (not idle_gpu(it), it.rule not in SUMMARY_RULES, -potential_saving(it)))


def idle_gpu(finding: Finding) -> bool:
    """Whether a finding is that the GPU idles for much of the step."""
    return finding.rule == "launch overhead" and finding.layer is None and potential_saving(finding) >= IDLE
