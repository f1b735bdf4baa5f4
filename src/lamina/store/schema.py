"""The tables of the trace database, and the view for questions by hand.

A change here needs a revision in ``migrations/versions`` and its number as ``HEAD`` in ``migrate.py``.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

Whole = BigInteger
Real = Float(53)
# SQLite counts by itself only in a column declared INTEGER.
Serial = BigInteger().with_variant(Integer, "sqlite")
# Dates and identifiers are compared byte by byte, whatever the language of the server.
Bytewise = Text().with_variant(Text(collation="C"), "postgresql")

environment = Table(
    "environment",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("digest", Text, nullable=False, unique=True, doc="SHA-256 of `content`"),
    Column("device", Text, doc="the device's name"),
    Column("driver", Text, doc="version of the GPU driver"),
    Column("cuda", Text, doc="version of CUDA"),
    Column("torch", Text, doc="version of PyTorch"),
    Column("lamina", Text, doc="version of lamina"),
    Column("lamina_commit", Text, doc="commit of lamina, `+dirty` where files differed from it"),
    Column("content", JSON, nullable=False, doc="everything known about the machine and its software"),
)

run = Table(
    "run",
    metadata,
    Column("number", Serial, primary_key=True, doc="order of arrival in this database"),
    Column("id", Bytewise, nullable=False, unique=True, doc="the run's name everywhere else"),
    Column("verb", Text, nullable=False, doc="`bench`, `profile`, `train`, ..."),
    Column("target", Text, nullable=False, doc="what was run: a model or a workload file"),
    Column("command", Text, nullable=False, doc="the command line"),
    Column("started", Bytewise, nullable=False, doc="ISO 8601, UTC"),
    Column("finished", Bytewise, doc="ISO 8601, UTC; empty while running, or where the process was killed"),
    Column("status", Text, nullable=False, doc="`running`, `done`, `interrupted` or `failed`"),
    Column("fingerprint", Text, nullable=False, doc="equal for the same work on the same machine"),
    Column("config", JSON, nullable=False, doc="the full configuration"),
    Column("remarks", JSON, nullable=False, doc="facts about the run that a reader should know"),
    Column("environment_id", ForeignKey(environment.c.id), nullable=False, index=True),
    Column("environment_date", Text, doc="when the environment was recorded, ISO 8601, UTC"),
    Index(None, "started"),
    Index(None, "fingerprint"),
)

layer = Table(
    "layer",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), nullable=False),
    Column("digest", Text, nullable=False, doc="SHA-256 of the columns below"),
    Column("name", Text, nullable=False, doc="the layer's name, or the network's for a whole `step`"),
    Column("kind", Text, nullable=False, doc="`convolution`, `linear`, ..."),
    Column("place", Whole, nullable=False, doc="place in the order of execution"),
    Column("inputs", JSON, nullable=False, doc="shapes of the inputs, batch included"),
    Column("output", JSON, nullable=False, doc="shape of the output, batch included"),
    Column("parameters", Whole, nullable=False, doc="number of trained parameters"),
    UniqueConstraint("run_id", "digest"),
    Index(None, "run_id", "name"),
)

measurement = Table(
    "measurement",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("layer_id", ForeignKey(layer.c.id, ondelete="CASCADE"), nullable=False),
    Column("phase", Text, nullable=False, doc="`forward`, `backward_data`, `backward_weight` or `step`"),
    Column("impl", Text, nullable=False, doc="implementation: `dense`, `circulant[block_size=64]`, ..."),
    Column("precision", Text, nullable=False, doc="`fp64`, `fp32`, `tf32`, `bf16` or `fp16`"),
    Column("layout", Text, nullable=False, doc="`nchw` or `nhwc`"),
    Column("batch", Whole, nullable=False, doc="batch size"),
    Column("device", Text, nullable=False, doc="device it ran on"),
    Column("outcome", Text, nullable=False, doc="`ok`, `failed` or `skipped`; only `ok` has times"),
    Column("reason", Text, nullable=False, doc="why it failed or was skipped"),
    Column("clock", Text, doc="`cpu`, `events`, `graph` or `cupti`"),
    Column("l2", Text, doc="state of the L2 cache: `warm`, `cold`, or `-` on the CPU"),
    Column("median_us", Real, doc="median time, microseconds"),
    Column("q1_us", Real, doc="first quartile, microseconds"),
    Column("q3_us", Real, doc="third quartile, microseconds"),
    Column("n", Whole, doc="number of samples"),
    Column("kernels", Whole, doc="kernels per call, where the clock sees them"),
    Column("flops", Whole, doc="floating-point operations; empty where no formula exists"),
    Column("bytes", Whole, doc="compulsory memory traffic, bytes"),
    Column("rel_error", Real, doc="relative L2 distance to the float64 result"),
    Column("peak_bytes", Whole, doc="peak of allocated device memory, bytes"),
    Column("sm_mhz", Whole, doc="clock of the multiprocessors, MHz"),
    Column("power_w", Real, doc="power draw, watts"),
    Column("created", Bytewise, nullable=False, doc="when it was written, ISO 8601, UTC"),
    # Only rows with a time compete for a place: a failed one gives way to its repetition.
    Index(
        "uq_measurement_key_clock",
        *("layer_id", "phase", "impl", "precision", "layout", "batch", "clock", "l2"),
        unique=True,
    ),
)

epoch = Table(
    "epoch",
    metadata,
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), primary_key=True),
    Column("epoch", Whole, primary_key=True, autoincrement=False),
    Column("step", Whole, nullable=False, doc="optimizer steps so far"),
    Column("learning_rate", Real, nullable=False),
    Column("train_loss", Real, nullable=False, doc="mean over the epoch"),
    Column("train_accuracy", Real, nullable=False, doc="mean over the epoch, 0 to 1"),
    Column("test_loss", Real, nullable=False, doc="after the epoch"),
    Column("test_accuracy", Real, nullable=False, doc="after the epoch, 0 to 1"),
    Column("seconds", Real, nullable=False, doc="time of training alone"),
)

roof = Table(
    "roof",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), nullable=False, index=True),
    Column("device", Text, nullable=False, doc="the device's name"),
    Column("date", Text, nullable=False, doc="when it was measured, ISO 8601, UTC"),
    Column("threads", Whole, nullable=False, doc="threads of PyTorch"),
    Column("versions", JSON, nullable=False, doc="versions of PyTorch, CUDA and the driver"),
    Column("copy_gbs", Real, nullable=False, doc="bandwidth of a copy, 1e9 bytes/s read plus written"),
    Column("read_gbs", Real, nullable=False, doc="bandwidth of a sum, 1e9 bytes/s read"),
    Column("gemm_gflops", JSON, nullable=False, doc="precision to 1e9 FLOP/s of a large matrix product"),
    Column("launch_us", Real, nullable=False, doc="device time of a tiny kernel, microseconds"),
    Column("enqueue_us", Real, nullable=False, doc="host time to hand over a tiny kernel, microseconds"),
)

kernel = Table(
    "kernel",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("layer_id", ForeignKey(layer.c.id, ondelete="CASCADE"), nullable=False),
    Column("phase", Text, nullable=False, doc="as in `measurement`"),
    Column("invocation", Whole, nullable=False, doc="which launch within the phase, from 0"),
    Column("name", Text, nullable=False, doc="the kernel's name"),
    *(Column(f"grid_{axis}", Whole, nullable=False, doc=f"blocks along {axis}") for axis in "xyz"),
    *(Column(f"block_{axis}", Whole, nullable=False, doc=f"threads along {axis}") for axis in "xyz"),
    Column("registers", Whole, doc="registers per thread"),
    Column("shared_bytes", Whole, doc="shared memory per block, bytes"),
    Column("duration_us", Real, nullable=False, doc="microseconds"),
    UniqueConstraint("layer_id", "phase", "invocation"),
)

counter = Table(
    "counter",
    metadata,
    Column("kernel_id", ForeignKey(kernel.c.id, ondelete="CASCADE"), primary_key=True),
    Column("metric", Text, primary_key=True, doc="the counter's name"),
    Column("value", Real, doc="empty where the chip cannot tell"),
    Column("unit", Text, nullable=False, doc="unit of `value`"),
)

# Made anew whenever the tables change, so that it is always this one. It states facts and judges nothing.
LAYER_TABLE = """
CREATE VIEW layer_table AS
SELECT
  run.id AS run_id, run.verb, run.target, run.started, run.status,
  environment.torch, environment.cuda, environment.driver, environment.lamina_commit,
  layer.name AS layer, layer.kind, layer.place, layer.inputs, layer.output, layer.parameters,
  measurement.phase, measurement.impl, measurement.precision, measurement.layout, measurement.batch,
  measurement.device, measurement.outcome, measurement.reason, measurement.clock, measurement.l2,
  measurement.median_us, measurement.q1_us, measurement.q3_us, measurement.n, measurement.kernels,
  measurement.flops, measurement.bytes,
  NULLIF(measurement.flops, 0) / NULLIF(measurement.median_us, 0) / 1e3 AS gflops,
  NULLIF(measurement.bytes, 0) / NULLIF(measurement.median_us, 0) / 1e3 AS gbs,
  measurement.rel_error, measurement.peak_bytes, measurement.sm_mhz, measurement.power_w, measurement.created
FROM measurement
JOIN layer ON layer.id = measurement.layer_id
JOIN run ON run.id = layer.run_id
JOIN environment ON environment.id = run.environment_id
"""
