"""The papers' tables: counted or measured, beside the printed values."""

from pathlib import Path

import pytest

from lamina.errors import UsageError
from lamina.pipeline import reproduce
from lamina.spec import Workload
from lamina.spec.published import entries, entry


def test_operation_counts_agree_with_the_table_but_for_the_disputed_softmax(tmp_path: Path) -> None:
    table = entry("dnnmark-table-5.1")
    done = reproduce(table, table.workload, None, tmp_path)
    assert done.run is None and len(done.rows) == 21
    assert [row.value.layer for row in done.rows if not row.agrees] == ["softmax"]
    assert [row.value.layer for row in done.rows if row.value.disputed] == ["softmax"]


def test_measured_tables_need_a_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="store"):
        reproduce(entry("dnnmark-table-4.4"), Workload(), None, tmp_path)


@pytest.mark.parametrize("published", entries(), ids=lambda each: each.id)
def test_every_entry_finds_its_recipe_and_layers(published: object, tmp_path: Path) -> None:
    from lamina.pipeline.reproduce import _beside
    from lamina.pipeline.targets import find
    from lamina.spec.published import Published

    assert isinstance(published, Published)
    target, _ = find(published.recipe)
    assert len(_beside(published, target.resolve())) == len(published.values)
