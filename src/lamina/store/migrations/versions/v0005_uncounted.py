"""How many layers the FLOPs of a whole network leave out."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Rows of earlier versions have FLOPs only where every layer is counted."""
    with op.batch_alter_table("measurement") as measurement:
        measurement.add_column(sa.Column("uncounted", sa.BigInteger, nullable=False, server_default="0"))
    with op.batch_alter_table("measurement") as measurement:
        measurement.alter_column(
            "uncounted", existing_type=sa.BigInteger, existing_nullable=False, server_default=None
        )
