"""The vocabulary against what ncu printed on an H200, and the documentation against the vocabulary."""

import re
import sys
from pathlib import Path

import pytest

from lamina.errors import UsageError
from lamina.measure.counters import LAUNCH, METRICS, SETS, metric, passes, select
from lamina.measure.counters.derived import DERIVED
from lamina.measure.counters.parse import parse, read
from lamina.spec.counters import PASSES

DATA = Path(__file__).parent / "data"
PRINTED = read((DATA / "full_h200.csv").read_text())
PAGE = Path(__file__).parents[3] / "docs" / "counters.md"


@pytest.mark.parametrize("one", [*(one for one in METRICS if one.sets), *LAUNCH], ids=lambda one: one.name)
def test_ncu_knows_every_metric_by_this_name_and_unit(one):
    assert PRINTED.units[one.name] == one.unit


def test_sets_are_subsets_of_full():
    full = set(select(["full"]))
    assert {name: set(select([name])) <= full for name in SETS} == dict.fromkeys(SETS, True)
    assert set().union(*(one.sets for one in METRICS)) == SETS.keys()


def test_the_full_set_needs_the_passes_of_ncu():
    (counted,) = {one.passes for one in parse((DATA / "full_h200.csv").read_text(), [])}
    assert counted == PASSES["gh100"]["full"] == passes(["full"], "gh100")
    assert passes(["full"], "gb202") is None
    assert passes(["core", "stalls"], "gh100") is None


def test_names_are_unique_and_documented():
    names = [one.name for one in (*METRICS, *LAUNCH)]
    assert len(names) == len(set(names))
    assert all(one.meaning for one in METRICS)


def test_selection_by_set_and_by_name():
    stall = "smsp__warp_issue_stalled_gmma_per_warp_active.pct"
    assert select([stall, "core", "gpu__time_duration.sum"]) == tuple(
        one.name for one in METRICS if "core" in one.sets or one.name == stall
    )
    assert select([]) == ()


@pytest.mark.parametrize(
    ("requested", "hint"), [("memori", "did you mean 'memory'"), ("stall", "did you mean 'stalls'")]
)
def test_an_unknown_set_gets_a_hint(requested, hint):
    with pytest.raises(UsageError, match=hint):
        select(["core", requested])


def test_one_metric_by_name():
    assert metric("gpu__time_duration.sum").unit == "ns"
    with pytest.raises(UsageError, match="did you mean 'gpu__time_duration.sum'"):
        metric("gpu__time_duration.sun")


def tables() -> str:
    """The generated part of the page."""
    lines = ["| set | contents | metrics | passes on gh100 |", "|---|---|---|---|"]
    for name, shows in SETS.items():
        lines.append(f"| `{name}` | {shows} | {len(select([name]))} | {PASSES['gh100'][name]} |")
    lines += ["", "| metric | unit | meaning | sets | not on |", "|---|---|---|---|---|"]
    for one in METRICS:
        lines.append(f"| `{one.name}` | {one.unit} | {one.meaning} | {', '.join(one.sets)} | {', '.join(one.absent)} |")
    for one in LAUNCH:
        lines.append(f"| `{one.name}` | {one.unit} | {one.meaning} | every one | |")
    lines += ["", "| nvprof | unit | from |", "|---|---|---|"]
    for one in DERIVED:
        aliases = ", ".join(f"`{alias}`" for alias in one.aliases)
        lines.append(f"| {aliases} | {one.unit} | `{one.formula}` |")
    return "\n".join(lines)


MARKED = re.compile(r"(?<=<!-- tables: begin -->\n\n).*(?=\n\n<!-- tables: end -->)", re.DOTALL)


def test_the_docs_page_lists_all_metrics():
    found = MARKED.search(PAGE.read_text(encoding="utf-8"))
    assert found and found[0] == tables(), f"run: python {Path(__file__).name}"


if __name__ == "__main__":
    sys.exit(PAGE.write_text(MARKED.sub(lambda _: tables(), PAGE.read_text(encoding="utf-8"))) and None)
