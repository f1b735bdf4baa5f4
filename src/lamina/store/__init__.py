"""The trace database: schema, migrations, write, query. The only SQL."""

from lamina.store.document import parse_document, write_document
from lamina.store.export import flatten, to_csv, to_json, to_parquet
from lamina.store.store import Store, open_store

__all__ = ["Store", "flatten", "open_store", "parse_document", "to_csv", "to_json", "to_parquet", "write_document"]
