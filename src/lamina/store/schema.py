"""The tables of the trace database. The views for questions by hand are in ``views.py``.

A change here needs a revision in ``migrations/versions`` and its number as ``HEAD`` in ``migrate.py``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
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

_AS_MEASURED = "as in `measurement`"


def _timing(side: str, nullable: bool) -> tuple[Column[Any], ...]:
    """Columns of a timing. The clock is empty where there is none."""
    return (
        Column(f"{side}_clock", Text, nullable=nullable, doc=_AS_MEASURED),
        Column(f"{side}_l2", Text, nullable=nullable, doc=_AS_MEASURED),
        Column(f"{side}_median_us", Real, nullable=nullable, doc="median time, microseconds"),
        Column(f"{side}_q1_us", Real, nullable=nullable, doc="first quartile, microseconds"),
        Column(f"{side}_q3_us", Real, nullable=nullable, doc="third quartile, microseconds"),
        Column(f"{side}_n", Whole, nullable=nullable, doc="number of samples"),
        Column(f"{side}_kernels", Whole, doc="kernels per call, where the clock sees them"),
    )


environment = Table(
    "environment",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("digest", Text, nullable=False, unique=True, doc="SHA-256 of `content`"),
    Column("device", Text, index=True, doc="the device's name"),
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
    Column("impl", Text, nullable=False, doc="requested implementation: `dense`, `circulant[block_size=64]`, ..."),
    Column("executed_impl", Text, nullable=False, doc="implementation that ran; empty where nothing ran"),
    Column("selection_reason", Text, nullable=False, doc="why `executed_impl` ran"),
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
    Column("live_bytes", Whole, doc="allocated device memory when it ended, bytes"),
    Column("sm_mhz", Whole, doc="clock of the multiprocessors, MHz"),
    Column("power_w", Real, doc="power draw, watts"),
    Column("energy_j", Real, doc="energy of one execution, idle power included, joules"),
    Column("uncounted", Whole, nullable=False, doc="layers of a network without a formula: `flops` is a lower bound"),
    Column("note", Text, nullable=False, doc="what disturbed the time, such as other processes; empty if nothing did"),
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
    *(Column(name, Text, nullable=False, doc=_AS_MEASURED) for name in ("phase", "impl", "precision", "layout")),
    Column("batch", Whole, nullable=False, doc=_AS_MEASURED),
    Column("invocation", Whole, nullable=False, doc="which launch of this row of `measurement`, from 0"),
    Column("name", Text, nullable=False, doc="the kernel's name"),
    *(Column(f"grid_{axis}", Whole, doc=f"blocks along {axis}; empty for copies and fills") for axis in "xyz"),
    *(Column(f"block_{axis}", Whole, doc=f"threads along {axis}; empty for copies and fills") for axis in "xyz"),
    Column("registers", Whole, doc="registers per thread"),
    Column("shared_bytes", Whole, doc="shared memory per block, bytes"),
    Column("duration_us", Real, nullable=False, doc="microseconds"),
    UniqueConstraint(
        *("layer_id", "phase", "impl", "precision", "layout", "batch", "invocation"), name="uq_kernel_key_invocation"
    ),
    Index(None, "name", postgresql_using="hash"),  # names are longer than a B-tree there takes
    Index(None, "duration_us"),
)

metric = Table(
    "metric",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("name", Text, nullable=False, doc="the counter's name"),
    Column("unit", Text, nullable=False, doc="unit of its values"),
    UniqueConstraint("name", "unit"),
)

# A counter's row is small and lies beside those of the same metric: there are ever so many.
counter = Table(
    "counter",
    metadata,
    Column("metric_id", ForeignKey(metric.c.id), primary_key=True),
    Column("kernel_id", ForeignKey(kernel.c.id, ondelete="CASCADE"), primary_key=True, index=True),
    Column("value", Real, doc="empty where the chip cannot tell"),
    sqlite_with_rowid=False,
)

coverage = Table(
    "coverage",
    metadata,
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), primary_key=True),
    *(Column(name, Text, primary_key=True, doc=_AS_MEASURED) for name in ("impl", "precision", "layout")),
    Column("batch", Whole, primary_key=True, autoincrement=False, doc=_AS_MEASURED),
    Column("kernels", Whole, nullable=False, doc="launches with a layer and a phase"),
    Column("attributed_us", Real, nullable=False, doc="device time of these, microseconds"),
    Column("strays", JSON, nullable=False, doc="names of the other kernels to their time, microseconds"),
)

what_if = Table(
    "what_if",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), nullable=False),
    Column("change", Text, nullable=False, doc="`fusion`, `channels_last`, `precision`, `cuda_graph`, ..."),
    Column("detail", Text, nullable=False, doc="what exactly was changed"),
    Column("layer", Text, nullable=False, doc="the layer's name, or the network's for a whole `step`"),
    Column("phase", Text, nullable=False, doc=_AS_MEASURED),
    Column("precision", Text, nullable=False, doc=_AS_MEASURED),
    Column("batch", Whole, nullable=False, doc=_AS_MEASURED),
    *_timing("before", nullable=False),
    Column("predicted_us", Real, doc="predicted time, microseconds; empty where no rule applies"),
    Column("rule", Text, nullable=False, doc="how it was predicted"),
    *_timing("after", nullable=True),
    Column("rel_error", Real, doc="relative L2 distance of the changed outputs to the float64 result"),
    Column("reason", Text, nullable=False, doc="why the change could not be executed"),
    UniqueConstraint(*("run_id", "change", "detail", "layer", "phase", "precision", "batch"), name="uq_what_if_change"),
)

sparsity = Table(
    "sparsity",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), nullable=False),
    Column("layer", Text, nullable=False, doc="the layer's name"),
    Column("tensor", Text, nullable=False, doc="which tensor of the layer"),
    Column("iteration", Whole, nullable=False, doc="training iteration, from 0"),
    Column("density", Real, nullable=False, doc="share of elements that are not zero"),
    Column("union_density", JSON, nullable=False, doc="neighbouring columns to the share of rows with any non-zero"),
    Column("dead_channels", Whole, doc="channels that are zero throughout"),
    Column("longest_column", Whole, doc="non-zeros of the fullest column"),
    UniqueConstraint("run_id", "layer", "tensor", "iteration"),
)

simulation = Table(
    "simulation",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), nullable=False),
    Column("digest", Text, nullable=False, doc="SHA-256 of `layer`, `kernel`, `device` and `config`"),
    Column("layer", Text, nullable=False, doc="the layer's name"),
    Column("kernel", Text, nullable=False, doc="the simulated kernel's name"),
    Column("device", Text, nullable=False, doc="the device description's name"),
    Column("config", JSON, nullable=False, doc="what was simulated with which settings"),
    Column("cycles", Whole, nullable=False, doc="simulated cycles"),
    Column("counters", JSON, nullable=False, doc="names of events to their counts"),
    Column("sampled", Boolean, nullable=False, doc="whether a sample stands for the whole"),
    Column("relative_error", Real, doc="estimated relative error of the sample"),
    UniqueConstraint("run_id", "digest"),
)

study = Table(
    "study",
    metadata,
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), primary_key=True),
    Column("content", JSON, nullable=False, doc="the result of the study, without its trials"),
)

trial = Table(
    "trial",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("run_id", ForeignKey(run.c.id, ondelete="CASCADE"), nullable=False),
    Column("layer", Text, nullable=False, doc="the layer's name"),
    Column("kind", Text, nullable=False, doc="its type with its sizes"),
    Column("impl", Text, nullable=False, doc="the candidate; `dense` is the user's own layer"),
    Column("precision", Text, nullable=False, doc=_AS_MEASURED),
    Column("layout", Text, nullable=False, doc=_AS_MEASURED),
    Column(
        "mode", Text, nullable=False,
        doc="`eager`, `compiled`, `reduce-overhead`, `graph` or `compiled-graph`, of the whole network",
    ),
    Column("method", Text, nullable=False, doc="of another package for the whole network, or `dense`"),
    *_timing("time", nullable=True),
    Column("dense_us", Real, doc="median time of what it replaces, timed in the same rounds, microseconds"),
    Column("predicted_us", Real, doc="time by the method's cost model, microseconds"),
    Column("accuracy", Real, doc="accuracy of the network with this layer alone changed, percent"),
    Column("outcome", Text, nullable=False, doc="`selected`, `slower`, `inaccurate`, `refused` or `failed`"),
    Column("reason", Text, nullable=False, doc="why"),
    UniqueConstraint(*("run_id", "layer", "impl", "precision", "layout", "mode", "method"), name="uq_trial_candidate"),
)
