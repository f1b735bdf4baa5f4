"""Statements about the hit rates of L1 and the texture cache: figures 5.10 (Tesla K40) and 5.11 (GTX 1080).

Both are one cache since Maxwell, whose hit rate is `metrics.L1_HIT`. Its global loads alone are what the K40 counted as
L1.
"""

from __future__ import annotations

from lamina.explain import metrics
from lamina.explain.launches import mean, total
from lamina.pipeline.reproduce.sample import ACTIVATION, LINEAR, Held, Sample, listed, unknown

LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
HITS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"
USED = 0.1
"""Hit rate above which L1 serves a phase."""


def _linear_layers_hit_in_texture(sample: Sample) -> Held:
    linear, others = (mean(sample.of(kinds), metrics.L1_HIT) for kinds in (LINEAR, sample.others))
    if linear is None or others is None:
        return unknown("the hit rate of L1 and texture was not counted")
    each = listed(sample.means(metrics.L1_HIT), "% hits of L1 and texture")
    return Held(f"{linear:.0f} % against {others:.0f} % of all others: {each}", linear > others)


def _activations_hit_in_texture(sample: Sample) -> Held:
    hits = mean(sample.of(ACTIVATION), metrics.L1_HIT)
    if hits is None:
        return unknown("the hit rate of L1 and texture was not counted")
    return Held(f"{hits:.1f} % hits of L1 and texture", hits > 100 * USED)


def _l1_is_hardly_used(sample: Sample) -> Held:
    rates = {}
    for row in sample.rows:
        launches = sample.launches[row.key]
        loads, hits = total(launches, LOADS), total(launches, HITS)
        if row.phase != "forward" and loads and hits is not None:
            rates[f"{row.layer} {row.phase}"] = hits / loads
    if not rates:
        return unknown("no global loads were counted")
    idle = sum(rate < USED for rate in rates.values())
    most = max(rates, key=lambda name: rates[name])
    text = f"{idle} of {len(rates)} backward phases hit L1 with less than {USED:.0%} of their global loads"
    return Held(f"{text}; most: {most}, {rates[most]:.0%}", idle > len(rates) / 2)


RULES = (_linear_layers_hit_in_texture, _activations_hit_in_texture, _l1_is_hardly_used)
