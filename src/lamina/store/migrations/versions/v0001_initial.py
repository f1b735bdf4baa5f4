"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

REAL = sa.Float(53)
SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "environment",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("device", sa.Text),
        sa.Column("driver", sa.Text),
        sa.Column("cuda", sa.Text),
        sa.Column("torch", sa.Text),
        sa.Column("lamina", sa.Text),
        sa.Column("lamina_commit", sa.Text),
        sa.Column("content", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_environment"),
        sa.UniqueConstraint("digest", name="uq_environment_digest"),
    )
    op.create_table(
        "run",
        sa.Column("number", SERIAL, nullable=False),
        sa.Column("id", BYTEWISE, nullable=False),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("started", BYTEWISE, nullable=False),
        sa.Column("finished", BYTEWISE),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("remarks", sa.JSON, nullable=False),
        sa.Column("environment_id", SERIAL, nullable=False),
        sa.Column("environment_date", sa.Text),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_run_environment_id"),
        sa.PrimaryKeyConstraint("number", name="pk_run"),
        sa.UniqueConstraint("id", name="uq_run_id"),
    )
    op.create_index("ix_run_environment_id", "run", ["environment_id"])
    op.create_index("ix_run_fingerprint", "run", ["fingerprint"])
    op.create_index("ix_run_started", "run", ["started"])
    op.create_table(
        "epoch",
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("epoch", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("learning_rate", REAL, nullable=False),
        sa.Column("train_loss", REAL, nullable=False),
        sa.Column("train_accuracy", REAL, nullable=False),
        sa.Column("test_loss", REAL, nullable=False),
        sa.Column("test_accuracy", REAL, nullable=False),
        sa.Column("seconds", REAL, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_epoch_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "epoch", name="pk_epoch"),
    )
    op.create_table(
        "layer",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("inputs", sa.JSON, nullable=False),
        sa.Column("output", sa.JSON, nullable=False),
        sa.Column("parameters", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_layer_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_layer"),
        sa.UniqueConstraint("run_id", "digest", name="uq_layer_run_id_digest"),
    )
    op.create_index("ix_layer_run_id_name", "layer", ["run_id", "name"])
    op.create_table(
        "roof",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("date", sa.Text, nullable=False),
        sa.Column("threads", sa.BigInteger, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("copy_gbs", REAL, nullable=False),
        sa.Column("read_gbs", REAL, nullable=False),
        sa.Column("gemm_gflops", sa.JSON, nullable=False),
        sa.Column("launch_us", REAL, nullable=False),
        sa.Column("enqueue_us", REAL, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_roof_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_roof"),
    )
    op.create_index("ix_roof_run_id", "roof", ["run_id"])
    op.create_table(
        "kernel",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("layer_id", SERIAL, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("invocation", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("grid_x", sa.BigInteger, nullable=False),
        sa.Column("grid_y", sa.BigInteger, nullable=False),
        sa.Column("grid_z", sa.BigInteger, nullable=False),
        sa.Column("block_x", sa.BigInteger, nullable=False),
        sa.Column("block_y", sa.BigInteger, nullable=False),
        sa.Column("block_z", sa.BigInteger, nullable=False),
        sa.Column("registers", sa.BigInteger),
        sa.Column("shared_bytes", sa.BigInteger),
        sa.Column("duration_us", REAL, nullable=False),
        sa.ForeignKeyConstraint(["layer_id"], ["layer.id"], name="fk_kernel_layer_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_kernel"),
        sa.UniqueConstraint("layer_id", "phase", "invocation", name="uq_kernel_layer_id_phase_invocation"),
    )
    op.create_table(
        "measurement",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("layer_id", SERIAL, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("impl", sa.Text, nullable=False),
        sa.Column("precision", sa.Text, nullable=False),
        sa.Column("layout", sa.Text, nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("clock", sa.Text),
        sa.Column("l2", sa.Text),
        sa.Column("median_us", REAL),
        sa.Column("q1_us", REAL),
        sa.Column("q3_us", REAL),
        sa.Column("n", sa.BigInteger),
        sa.Column("kernels", sa.BigInteger),
        sa.Column("flops", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("rel_error", REAL),
        sa.Column("peak_bytes", sa.BigInteger),
        sa.Column("sm_mhz", sa.BigInteger),
        sa.Column("power_w", REAL),
        sa.Column("created", BYTEWISE, nullable=False),
        sa.ForeignKeyConstraint(["layer_id"], ["layer.id"], name="fk_measurement_layer_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_measurement"),
    )
    op.create_index(
        "uq_measurement_key_clock",
        "measurement",
        ["layer_id", "phase", "impl", "precision", "layout", "batch", "clock", "l2"],
        unique=True,
    )
    op.create_table(
        "counter",
        sa.Column("kernel_id", SERIAL, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("value", REAL),
        sa.Column("unit", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernel.id"], name="fk_counter_kernel_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("kernel_id", "metric", name="pk_counter"),
    )
