"""The views for questions by hand: joined tables. They state facts and judge nothing.

They are made anew whenever the tables change, so that they are always these.
"""

from __future__ import annotations

from collections.abc import Mapping

_PROVENANCE = """
  run.id AS run_id, run.verb, run.target, run.started, run.status,
  environment.torch, environment.cuda, environment.driver, environment.lamina_commit,"""
_OF_THE_RUN = """
JOIN run ON run.id = layer.run_id
JOIN environment ON environment.id = run.environment_id
"""

VIEWS: Mapping[str, str] = {
    "layer_table": f"""
SELECT{_PROVENANCE}
  layer.name AS layer, layer.kind, layer.place, layer.inputs, layer.output, layer.parameters,
  measurement.phase, measurement.impl, measurement.executed_impl, measurement.selection_reason,
  measurement.precision, measurement.layout, measurement.batch,
  measurement.device, measurement.outcome, measurement.reason, measurement.clock, measurement.l2,
  measurement.median_us, measurement.q1_us, measurement.q3_us, measurement.n, measurement.kernels,
  measurement.flops, measurement.uncounted, measurement.bytes,
  NULLIF(measurement.flops, 0) / NULLIF(measurement.median_us, 0) / 1e3 AS gflops,
  NULLIF(measurement.bytes, 0) / NULLIF(measurement.median_us, 0) / 1e3 AS gbs,
  measurement.rel_error, measurement.peak_bytes, measurement.live_bytes, measurement.sm_mhz, measurement.power_w,
  measurement.energy_j, measurement.note,
  measurement.created
FROM measurement
JOIN layer ON layer.id = measurement.layer_id{_OF_THE_RUN}""",
    "kernel_table": f"""
SELECT{_PROVENANCE} environment.device,
  layer.name AS layer, layer.kind, layer.place,
  kernel.phase, kernel.impl, kernel.precision, kernel.layout, kernel.batch, kernel.invocation,
  kernel.id AS kernel_id, kernel.name AS kernel,
  kernel.grid_x, kernel.grid_y, kernel.grid_z, kernel.block_x, kernel.block_y, kernel.block_z,
  kernel.grid_x * kernel.grid_y * kernel.grid_z AS blocks,
  kernel.block_x * kernel.block_y * kernel.block_z AS threads,
  kernel.registers, kernel.shared_bytes, kernel.duration_us
FROM kernel
JOIN layer ON layer.id = kernel.layer_id{_OF_THE_RUN}""",
    "counter_table": f"""
SELECT{_PROVENANCE} environment.device,
  layer.name AS layer, layer.kind, layer.place,
  kernel.phase, kernel.impl, kernel.precision, kernel.layout, kernel.batch, kernel.invocation,
  kernel.id AS kernel_id, kernel.name AS kernel, kernel.duration_us,
  metric.name AS metric, counter.value, metric.unit
FROM counter
JOIN metric ON metric.id = counter.metric_id
JOIN kernel ON kernel.id = counter.kernel_id
JOIN layer ON layer.id = kernel.layer_id{_OF_THE_RUN}""",
}
"""Name of each view to the SELECT that it stands for."""

COMPUTED: Mapping[str, str] = {
    "gflops": "`flops` over `median_us`, 1e9 FLOP/s",
    "gbs": "`bytes` over `median_us`, 1e9 bytes/s",
    "blocks": "blocks of the grid; empty for copies and fills",
    "threads": "threads of a block; empty for copies and fills",
}
"""Columns of the views that are in no table, and what they mean."""
