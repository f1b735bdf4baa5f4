"""What disturbed the time of a row."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Of rows of earlier versions nothing is known."""
    with op.batch_alter_table("measurement") as measurement:
        measurement.add_column(sa.Column("note", sa.Text, nullable=False, server_default=""))
    with op.batch_alter_table("measurement") as measurement:
        measurement.alter_column("note", existing_type=sa.Text, existing_nullable=False, server_default=None)
