"""The energy of each phase of a layer."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Rows of earlier versions have none."""
    with op.batch_alter_table("measurement") as measurement:
        measurement.add_column(sa.Column("energy_j", sa.Float(53)))
