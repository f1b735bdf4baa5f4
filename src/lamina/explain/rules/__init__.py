"""The rules. Each is a pure function from one setting's view to findings; it yields none if its inputs are absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lamina.explain.rules.bounds import bottlenecks, warp_stalls
from lamina.explain.rules.counters import l2_partitions, tensor_core_flops, tma_bypasses_l1, wgmma_stalls
from lamina.explain.rules.energy import energy_shares, power_limit
from lamina.explain.rules.memory import excess_traffic, workspace
from lamina.explain.rules.occupancy import idle_sms, low_occupancy
from lamina.explain.rules.repeated import repeated_below_roofline
from lamina.explain.rules.small import launch_overhead, layout_conversions, phase_launch_overhead, small_kernels
from lamina.explain.rules.tensor_cores import tensor_cores_idle
from lamina.explain.rules.timings import (
    above_roofline,
    below_roofline,
    busy_machine,
    dominant_layers,
    imbalance,
    launch_bound,
    noisy,
    step_gap,
    without_time,
)
from lamina.explain.view import View
from lamina.record import Finding

RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (
    dominant_layers,
    bottlenecks,
    below_roofline,
    repeated_below_roofline,
    imbalance,
    tensor_cores_idle,
    layout_conversions,
    launch_overhead,
    phase_launch_overhead,
    small_kernels,
    launch_bound,
    excess_traffic,
    idle_sms,
    low_occupancy,
    warp_stalls,
    above_roofline,
    step_gap,
    workspace,
    energy_shares,
    power_limit,
    without_time,
    busy_machine,
    noisy,
    tma_bypasses_l1,
    tensor_core_flops,
    wgmma_stalls,
    l2_partitions,
)
"""In the order in which findings without a potential saving are listed."""
