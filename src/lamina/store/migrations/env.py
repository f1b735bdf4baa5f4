"""How Alembic runs the revisions: on the connection, and in the transaction, that it is given."""

from alembic import context

from lamina.store.migrate import VERSION_TABLE
from lamina.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
