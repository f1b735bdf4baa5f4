"""The rules: each a pure function from one setting's view to findings, silent where its inputs are absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lamina.explain.rules.bounds import what_limits, why_warps_wait
from lamina.explain.rules.memory import traffic, workspace
from lamina.explain.rules.occupancy import device_not_filled, few_warps
from lamina.explain.rules.small import between_kernels, layout_conversions, slower_than_its_kernels, small_kernels
from lamina.explain.rules.tensor_cores import tensor_cores_idle
from lamina.explain.rules.timings import (
    above_roof,
    dominant_layers,
    far_below_roof,
    imbalance,
    launch_bound,
    noisy,
    step_gap,
    without_time,
)
from lamina.explain.rules.traps import (
    l2_counts_twice,
    tensor_work_is_not_counted,
    tma_goes_past_l1,
    waiting_for_a_warpgroup,
)
from lamina.explain.view import View
from lamina.record import Finding

RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (
    dominant_layers,
    what_limits,
    far_below_roof,
    imbalance,
    tensor_cores_idle,
    layout_conversions,
    between_kernels,
    slower_than_its_kernels,
    small_kernels,
    launch_bound,
    traffic,
    device_not_filled,
    few_warps,
    why_warps_wait,
    above_roof,
    step_gap,
    workspace,
    without_time,
    noisy,
    tma_goes_past_l1,
    tensor_work_is_not_counted,
    waiting_for_a_warpgroup,
    l2_counts_twice,
)
"""In the order in which a reader wants them where nothing else ranks them."""
