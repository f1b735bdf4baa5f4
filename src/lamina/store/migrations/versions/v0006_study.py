"""Studies: their results, and every candidate that they tried."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

REAL = sa.Float(53)
SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SETTINGS = ("precision", "layout", "mode", "method")


def upgrade() -> None:
    op.create_table(
        "study",
        sa.Column("run_id", BYTEWISE, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_study_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_study"),
    )
    op.create_table(
        "trial",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run_id", BYTEWISE, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("layer", "kind", "impl", *SETTINGS)),
        sa.Column("time_clock", sa.Text),
        sa.Column("time_l2", sa.Text),
        *(sa.Column(f"time_{name}", REAL) for name in ("median_us", "q1_us", "q3_us")),
        sa.Column("time_n", sa.BigInteger),
        sa.Column("time_kernels", sa.BigInteger),
        sa.Column("dense_us", REAL),
        sa.Column("predicted_us", REAL),
        sa.Column("accuracy", REAL),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_trial_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_trial"),
        sa.UniqueConstraint("run_id", "layer", "impl", *SETTINGS, name="uq_trial_candidate"),
    )
