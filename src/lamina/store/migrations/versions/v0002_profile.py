"""Kernels joined by configuration; coverage, what-ifs, sparsity and simulations."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

REAL = sa.Float(53)
SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
CONFIGURATION = ("impl", "precision", "layout", "batch")


def upgrade() -> None:
    op.create_index("ix_environment_device", "environment", ["device"])
    op.add_column("measurement", sa.Column("live_bytes", sa.BigInteger))
    upgrade_kernels()
    upgrade_counters()
    create_coverage()
    create_what_if()
    create_sparsity()
    create_simulation()


def upgrade_kernels() -> None:
    """A launch did not say which configuration it belongs to.

    It gets the only one that its layer and phase were measured in. Where there are several or none it stays
    unknown, as empty text and batch 0: nothing is guessed.
    """
    with op.batch_alter_table("kernel") as kernel:
        for name in ("impl", "precision", "layout"):
            kernel.add_column(sa.Column(name, sa.Text, nullable=False, server_default=""))
        kernel.add_column(sa.Column("batch", sa.BigInteger, nullable=False, server_default="0"))
        for axis in "xyz":
            kernel.alter_column(f"grid_{axis}", existing_type=sa.BigInteger, nullable=True)
            kernel.alter_column(f"block_{axis}", existing_type=sa.BigInteger, nullable=True)
    same = "measurement.layer_id = kernel.layer_id AND measurement.phase = kernel.phase"
    one = f"SELECT DISTINCT {', '.join(CONFIGURATION)} FROM measurement WHERE {same}"
    for name in CONFIGURATION:
        op.execute(
            f"UPDATE kernel SET {name} = (SELECT min({name}) FROM measurement WHERE {same}) "
            f"WHERE (SELECT count(*) FROM ({one}) AS configurations) = 1"
        )
    with op.batch_alter_table("kernel") as kernel:
        for name in CONFIGURATION:
            kind = sa.BigInteger if name == "batch" else sa.Text
            kernel.alter_column(name, existing_type=kind, existing_nullable=False, server_default=None)
        kernel.drop_constraint("uq_kernel_layer_id_phase_invocation", type_="unique")
        kernel.create_unique_constraint("uq_kernel_key_invocation", ["layer_id", "phase", *CONFIGURATION, "invocation"])
    op.create_index("ix_kernel_name", "kernel", ["name"], postgresql_using="hash")
    op.create_index("ix_kernel_duration_us", "kernel", ["duration_us"])


def upgrade_counters() -> None:
    """A metric's name and unit are written once, and its values lie together."""
    metric = op.create_table(
        "metric",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_metric"),
        sa.UniqueConstraint("name", "unit", name="uq_metric_name_unit"),
    )
    old = op.get_bind().execute(sa.text("SELECT metric, unit, kernel_id, value FROM counter")).all()
    op.drop_table("counter")
    counter = op.create_table(
        "counter",
        sa.Column("metric_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("kernel_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("value", REAL),
        sa.ForeignKeyConstraint(["metric_id"], ["metric.id"], name="fk_counter_metric_id"),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernel.id"], name="fk_counter_kernel_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("metric_id", "kernel_id", name="pk_counter"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_counter_kernel_id", "counter", ["kernel_id"])
    names = sorted({(name, unit) for name, unit, _, _ in old})
    op.bulk_insert(metric, [{"name": name, "unit": unit} for name, unit in names])
    ids = {(name, unit): number for number, name, unit in op.get_bind().execute(sa.select(metric))}
    op.bulk_insert(
        counter,
        [{"metric_id": ids[name, unit], "kernel_id": owner, "value": value} for name, unit, owner, value in old],
    )


def create_coverage() -> None:
    op.create_table(
        "coverage",
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("impl", sa.Text, nullable=False),
        sa.Column("precision", sa.Text, nullable=False),
        sa.Column("layout", sa.Text, nullable=False),
        sa.Column("batch", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("kernels", sa.BigInteger, nullable=False),
        sa.Column("attributed_us", REAL, nullable=False),
        sa.Column("strays", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_coverage_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", *CONFIGURATION, name="pk_coverage"),
    )


def create_what_if() -> None:
    def timing(side: str, nullable: bool) -> list[sa.Column[object]]:
        return [
            sa.Column(f"{side}_clock", sa.Text, nullable=nullable),
            sa.Column(f"{side}_l2", sa.Text, nullable=nullable),
            sa.Column(f"{side}_median_us", REAL, nullable=nullable),
            sa.Column(f"{side}_q1_us", REAL, nullable=nullable),
            sa.Column(f"{side}_q3_us", REAL, nullable=nullable),
            sa.Column(f"{side}_n", sa.BigInteger, nullable=nullable),
            sa.Column(f"{side}_kernels", sa.BigInteger),
        ]

    op.create_table(
        "what_if",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("change", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("layer", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("precision", sa.Text, nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        *timing("before", nullable=False),
        sa.Column("predicted_us", REAL),
        sa.Column("rule", sa.Text, nullable=False),
        *timing("after", nullable=True),
        sa.Column("rel_error", REAL),
        sa.Column("reason", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_what_if_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_what_if"),
        sa.UniqueConstraint(
            "run_id", "change", "detail", "layer", "phase", "precision", "batch", name="uq_what_if_change"
        ),
    )


def create_sparsity() -> None:
    op.create_table(
        "sparsity",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("layer", sa.Text, nullable=False),
        sa.Column("tensor", sa.Text, nullable=False),
        sa.Column("iteration", sa.BigInteger, nullable=False),
        sa.Column("density", REAL, nullable=False),
        sa.Column("union_density", sa.JSON, nullable=False),
        sa.Column("dead_channels", sa.BigInteger),
        sa.Column("longest_column", sa.BigInteger),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_sparsity_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_sparsity"),
        sa.UniqueConstraint("run_id", "layer", "tensor", "iteration", name="uq_sparsity_run_id_layer_tensor_iteration"),
    )


def create_simulation() -> None:
    op.create_table(
        "simulation",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("layer", sa.Text, nullable=False),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("cycles", sa.BigInteger, nullable=False),
        sa.Column("counters", sa.JSON, nullable=False),
        sa.Column("sampled", sa.Boolean, nullable=False),
        sa.Column("relative_error", REAL),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_simulation_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_simulation"),
        sa.UniqueConstraint("run_id", "digest", name="uq_simulation_run_id_digest"),
    )
