"""The page on the database is in step with the database. Run as a script, this file brings it there."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Column, Table

from lamina.record import Counter, KernelRun, Key, LayerRun, Run
from lamina.store import Store, open_store
from lamina.store.schema import metadata
from lamina.store.views import COMPUTED, VIEWS

PAGE = Path(__file__).parents[2] / "docs" / "store.md"


def described(table: Table) -> str:
    lines = [f"### `{table.name}`", "", "| column | type | meaning |", "|---|---|---|"]
    for column in table.columns:
        kind = (
            "JSON"
            if str(column.type) == "JSON"
            else {int: "integer", float: "real", str: "text", bool: "boolean"}[column.type.python_type]
        )
        absent = ", may be empty" if column.nullable else ""
        lines.append(f"| `{column.name}` | {kind}{absent} | {meaning(column)} |")
    return "\n".join(lines)


def meaning(column: "Column[object]") -> str:
    keys = ["refers to " + ", ".join(f"`{key.column.table.name}.{key.column.name}`" for key in column.foreign_keys)]
    parts = (["key"] if column.primary_key else []) + (keys if column.foreign_keys else [])
    return "; ".join([*parts, *([column.doc] if column.doc else [])]) or column.name.replace("_", " ")


def described_view(name: str, columns: Iterable[str]) -> str:
    lines = [f"### `{name}`", "", "| column | is | meaning |", "|---|---|---|"]
    selected = re.findall(r"(\w+)\.(\w+)(?: AS (\w+))?(?=[,\s]|$)", VIEWS[name].split("\nFROM")[0])
    origins = {alias or column: (table, column) for table, column, alias in selected}
    for column in columns:
        if column in COMPUTED:
            lines.append(f"| `{column}` | computed | {COMPUTED[column]} |")
        else:
            table, origin = origins[column]
            lines.append(f"| `{column}` | `{table}.{origin}` | {meaning(metadata.tables[table].c[origin])} |")
    return "\n".join(lines)


def in_step(page: str) -> str:
    with open_store(":memory:") as store:
        views = [described_view(name, store.query(f"SELECT * FROM {name}")[0]) for name in VIEWS]
    parts = {"tables": [described(table) for table in metadata.sorted_tables], "views": views}
    for name, sections in parts.items():
        begin, end = (f"<!-- {name}: {side} -->" for side in ("begin", "end"))
        before, rest = page.split(begin)
        page = "\n\n".join([f"{before}{begin}", *sections, f"{end}{rest.split(end)[1]}"])
    return page


def test_the_page_describes_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == in_step(page), f"docs/store.md is behind: run python {Path(__file__).name}"


def blocks(language: str) -> list[str]:
    return re.findall(f"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_questions_have_answers(
    store: Store, a_run: Callable[..., Run], a_layer_run: Callable[..., LayerRun]
) -> None:
    store.begin(a_run(environment={"device": "NVIDIA H200"}))
    store.add("20260102-abc", a_layer_run(precision="bf16", device="NVIDIA H200"))
    store.add("20260102-abc", a_layer_run("fc", outcome="failed", timing=None, reason="out of memory"))
    fallback = a_layer_run("relu", impl="sparse", executed_impl="dense", selection_reason="no zeros")
    store.add("20260102-abc", fallback)
    key = Key("conv1", "forward", "dense", "bf16", "nchw", 32)
    launch = KernelRun(key, 0, "k", (1, 1, 1), (1, 1, 1), None, None, 2.0)
    store.add_kernels("20260102-abc", [launch, replace(launch, invocation=1)])
    store.add_counters("20260102-abc", [Counter(key, 0, "sm__throughput.avg.pct_of_peak_sustained_elapsed", 50.0, "%")])
    questions = [question for block in blocks("sql") for question in block.split(";") if question.strip()]
    rows = [store.query(question)[1] for question in questions]
    assert [len(row) for row in rows] == [2, 1, 1, 1, 1, 2, 1, 1, 1]
    assert rows[0][0][:5] == ("conv1", "forward", "dense", "bf16", 900.5)
    assert rows[2] == (("fc", "forward", "dense", "failed", "out of memory"),)
    assert rows[3] == (("relu", "forward", "sparse", "no zeros"),)
    assert rows[4] == (("conv1", "forward", "k", 2, 4.0),)
    assert rows[5] == (("conv1", "forward", "k", 2.0, 1, 1),) * 2
    assert rows[6] == (("conv1", "forward", 32, 50.0, "%"),)
    assert rows[7] == (("20260102-abc", None, 2, 2.0),)
    assert rows[8] == (("20260102-abc", "bench", "alexnet"),)


def test_the_pages_program_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    a_run: Callable[..., Run],
    a_layer_run: Callable[..., LayerRun],
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("lamina.db") as store:
        store.begin(a_run())
        store.add("20260102-abc", a_layer_run())
    (program,) = blocks("python")
    exec(program, {})
    assert capsys.readouterr().out.startswith("conv1 forward dense 4994.6")


def test_everything_is_named_by_the_convention() -> None:
    for table in metadata.sorted_tables:
        assert all(constraint.name for constraint in table.constraints)
        assert all(index.name for index in table.indexes)


if __name__ == "__main__":
    PAGE.write_text(in_step(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
