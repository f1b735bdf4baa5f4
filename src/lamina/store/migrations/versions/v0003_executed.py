"""The implementation that ran, beside the requested one, and why it ran."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

COLUMNS = ("executed_impl", "selection_reason")


def upgrade() -> None:
    """Rows of earlier versions ran what was requested, as far as is known; failed and skipped ones ran nothing."""
    with op.batch_alter_table("measurement") as measurement:
        for name in COLUMNS:
            measurement.add_column(sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.execute("UPDATE measurement SET executed_impl = impl WHERE outcome = 'ok'")
    with op.batch_alter_table("measurement") as measurement:
        for name in COLUMNS:
            measurement.alter_column(name, existing_type=sa.Text, existing_nullable=False, server_default=None)
