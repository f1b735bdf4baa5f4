"""Statements about counters: each rule has both outcomes, and what holds on the GPU that was measured."""

import json
from typing import Any

import pytest

from benchmarks.published import statements
from benchmarks.results import FOLDER
from lamina.pipeline.reproduce.measured.ladder_counters import EVERY, RULES, cases

COUNTERS = ("instructions", "read_sectors", "written_sectors", "static_instructions", "ipc", "eligible_warps")


def rows(**of: dict[str, float]) -> list[dict[str, Any]]:
    """A layer at blocks of 32 and 64, two phases each; ``of`` says what differs from 10, by rung."""
    alike = dict.fromkeys((*COUNTERS, "occupancy_pct"), 10.0)
    return [
        {"layer": "A", "block_size": k, "rung": rung, "phase": phase, "kernels": "own", "time_us": time}
        | alike
        | {name: number * (1 + (k == 64)) if name == "occupancy_pct" else number for name, number in mine.items()}
        for k in (32, 64)
        for rung in EVERY
        for phase, time in (("forward", 1.0), ("backward_data", 3.0))
        for mine in (of.get(rung, {}),)
    ]


def test_counts_are_summed_and_rates_weighed_by_time() -> None:
    some = rows()
    some[0] |= {"ipc": 2.0, "instructions": 30.0}
    other = some[0] | {"kernels": "all"}
    mine = cases([*some, other])["A", 32]["as_written"]
    assert (mine["instructions"], mine["ipc"], mine["ratio"]) == (40.0, (1 * 2 + 3 * 10) / 4, 20 / 40)
    assert mine["sectors"] == 40.0


@pytest.mark.parametrize(
    ("name", "holding"),
    [
        ("fusion_has_the_largest_ratio", {"fusion": {"instructions": 1.0}}),
        ("o1_has_a_larger_ratio_than_o2", {"o1_sum": {"static_instructions": 11.0}}),
        ("optimizations_issue_more", {"as_written": {"ipc": 9.0}}),
        ("o2_has_the_fewest_eligible_warps", {"o2_sum": {"eligible_warps": 9.0}}),
        ("the_baseline_is_short", {"as_written": {"static_instructions": 9.0}}),
        ("the_baseline_executes_most", {"as_written": {"instructions": 11.0}}),
        ("o1_is_longer_than_o2", {"o2_sum": {"static_instructions": 9.0}}),
        ("o1_executes_more_than_o2", {"o1_sum": {"instructions": 11.0}}),
        ("fusion_reads_least", {"fusion": {"read_sectors": 9.0}}),
        ("fusion_writes_least", {"fusion": {"written_sectors": 9.0}}),
        ("optimizations_occupy_more", {"as_written": {"occupancy_pct": 9.0}}),
        ("fusion_occupies_least_at_64", {"fusion": {"occupancy_pct": 4.0}}),
        ("o2_occupies_more_at_64", {"o2_sum": {"occupancy_pct": 9.0}}),
    ],
)
def test_rules_see_both_outcomes(name: str, holding: dict[str, dict[str, float]]) -> None:
    ((rung, mine),) = holding.items()
    turned = {rung: {counter: 20 - number for counter, number in mine.items()}}
    turned = {"o2_sum": {"occupancy_pct": 0.0}} if name == "o2_occupies_more_at_64" else turned
    assert RULES[name](rows(**holding))[1] is True
    assert RULES[name](rows(**turned))[1] is False


def test_larger_blocks_move_less_where_each_moves_no_more_than_the_one_before() -> None:
    some = rows()
    assert RULES["larger_blocks_move_less"](some) == ("4 of 4 layers and versions", True)
    some[-1]["read_sectors"] = 11.0
    assert RULES["larger_blocks_move_less"](some) == ("3 of 4 layers and versions", False)


def test_what_holds_on_an_h200() -> None:
    """Kernel fusion does what the dissertation says of it; the other optimizations and occupancy are another GPU's."""
    path = max(FOLDER.glob("ladder_circulant_nvidia-h200_*.json"))
    counted = json.loads(path.read_text(encoding="utf-8"))["summary"]["counters"]["rows"]
    found = {(one["about"], one["says"]): one["holds"] for one in statements("circulant-counters", counted)}
    assert sorted(says for says, holds in found.items() if not holds) == sorted([
        ("all optimizations", "more instructions per cycle than the baseline"),
        ("O2+Sum", "the fewest eligible warps of the optimizations"),
        ("O1+Sum", "more executed instructions than O2+Sum"),
        ("kernel fusion at blocks of 64", "a lower occupancy than the others"),
        ("O2+Sum at blocks of 64", "a higher occupancy than at 32"),
    ])  # fmt: skip
    assert len(found) == 14
