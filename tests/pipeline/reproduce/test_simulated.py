"""Published simulations: points become jobs, numbers stand beside the mean of ours, statements are looked for."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from tests.pipeline.simulate.test_simulate import Counting

from lamina.errors import UsageError
from lamina.pipeline import reproduce
from lamina.pipeline.reproduce import Reproduced
from lamina.pipeline.reproduce.networks import NETWORKS
from lamina.pipeline.reproduce.points import (
    COUNTERS,
    HIT_RATE,
    LATENCY,
    QUANTITIES,
    SPEEDUP,
    TRANSACTIONS,
    Pair,
    quantity,
)
from lamina.pipeline.reproduce.simulated import DRAWN, Simulating, judged, plan, recorded_pairs
from lamina.pipeline.reproduce.simulated_statements import CHECKS, check
from lamina.pipeline.reproduce.training import SHARE, TRAINING
from lamina.record import SimRun
from lamina.simulate.jobs import Result, execute
from lamina.spec import Workload
from lamina.spec.points import Settings
from lamina.spec.published import Published, entries
from lamina.spec.published import entry as by_id
from lamina.store import Store

SMALL: dict[str, Any] = {"unit": "dense", "batch": 1, "device.cu.count": 2}
FIGURE: dict[str, Any] = {
    "id": "tiny",
    "title": "caches",
    "paper": "a paper",
    "place": "Figure 1",
    "recipe": "lenet5",
    "recorded": "simulated_engine",
    "simulates": {
        "base": SMALL,
        "baseline": {"device.dram.latency": 400.0},
        "axes": {"device.dram.latency": [100.0, 400.0]},
        "works": [
            {"name": "conv1", "settings": {"layer": "features.0"}},
            {"name": "conv2", "settings": {"layer": "features.3"}, "times": 3},
        ],
        "shows": ["speedup"],
    },
    "values": [
        {"layer": "conv*", "quantity": "speedup", "value": 9.5, "unit": "x", "where": {"device.dram.latency": 100.0}},
        {"layer": "conv1", "quantity": "speedup", "value": 1.0, "unit": "x", "where": {"device.dram.latency": 400.0}},
        {"layer": "conv1", "quantity": "speedup", "value": 1.0, "unit": "x", "where": {"batch": 99}},
        {"layer": "conv*", "quantity": "P", "value": 50, "unit": "%"},
        {"layer": "conv*", "quantity": "training speedup", "value": 1.0, "unit": "x"},
    ],
    "statements": [{"about": "all", "says": "larger is better", "check": "speedup_grows_with_batch"}],
}


def entry(**changes: Any) -> Published:
    return Published.model_validate({**FIGURE, **changes})


def run(published: Published, store: Store | None, how: Simulating | None = None) -> Reproduced:
    return reproduce(published, Workload(), store, Path("unused"), simulating=how)


def test_printed_values_are_compared_with_the_mean_of_their_points(store: Store) -> None:
    done = run(entry(), store)
    assert done.run is not None and (done.run.verb, done.run.target) == ("simulate", "tiny")
    cycles = {(kept.layer, kept.config["device.dram.latency"]): kept.cycles for kept in store.simulations(done.run.id)}
    gains = [cycles[layer, 400.0] / cycles[layer, 100.0] for layer in ("features.0", "features.3")]
    fast, same, other, share, training = done.rows[:5]
    assert (
        fast.ours.startswith(f"{mean([gains[0]] + [gains[1]] * 3):.3g} x, {min(gains):.3g} to") and fast.agrees is False
    )
    assert same.ours == "1 x" and same.agrees is True
    assert other.agrees is None and "not among" in other.ours
    assert share.ours == "used as printed" and share.agrees is None

    # Each layer is dense half of the time: by hand, with the shares of the slow run.
    whole = cycles["features.0", 400.0] + 3 * cycles["features.3", 400.0]
    sped = sum(
        times * cycles[layer, 400.0] / whole * (0.5 / gain + 0.5)
        for layer, times, gain in zip(("features.0", "features.3"), (1, 3), gains, strict=True)
    )
    assert training.ours == f"{1 / (0.5 + 0.5 * sped):.3g} x"


def test_plotted_quantities_and_statements_follow(store: Store) -> None:
    rows = run(entry(), store).rows
    drawn = rows[5:9]
    assert {row.value.value for row in drawn} == {DRAWN} and {row.agrees for row in drawn} == {None}
    assert drawn[0].value.layer == "conv1, device.dram.latency 100.0" and drawn[1].ours == "1 x"
    (statement,) = rows[9:]
    assert statement.agrees is None and statement.ours == "nothing to compare"
    assert statement.value.note == "cannot be determined from these points"


def test_what_the_store_has_is_not_simulated_again(store: Store) -> None:
    engine = Counting()
    first = run(entry(), store, Simulating(engine))
    assert len(engine.ran) == 4  # the baseline is one of the points
    again = run(entry(), store, Simulating(engine))
    assert len(engine.ran) == 4 and again.rows == first.rows
    run(entry(), store, Simulating(engine, fresh=True))
    assert len(engine.ran) == 8


def test_settings_are_the_last_word_and_replace_an_axis(store: Store) -> None:
    changed = plan(entry(), _points(entry()), {"device.dram.latency": 200.0, "batch": 2})
    assert [each.ours.batch for each in changed] == [2, 2]
    assert {each.ours.device.dram.latency for each in changed} == {200.0}
    assert {each.baseline.device.dram.latency for each in changed} == {400.0}


def test_a_layer_without_a_result_has_a_reason(store: Store) -> None:
    done = run(entry(), store, Simulating(settings={"device.dram.bytes": 200_000}))
    assert "device.dram.bytes = 200000, baseline device.dram.latency = 400.0" in done.entry.note
    assert all(row.agrees is None for row in done.rows)
    assert any("dram.bytes" in row.ours for row in done.rows)


def test_invalid_entries_are_rejected(store: Store) -> None:
    with pytest.raises(UsageError, match="expected a store"):
        run(entry(), None)
    with pytest.raises(UsageError, match="reused without --run"):
        reproduce(entry(), Workload(), store, Path("unused"), run_id="latest")
    every = {**FIGURE["simulates"], "works": [{"name": "all", "settings": {}}]}
    with pytest.raises(UsageError, match="expected one layer, got 2"):
        run(entry(simulates=every), store)
    unknown = [{"layer": "conv1", "quantity": "speedups", "value": 1}]
    with pytest.raises(UsageError, match="did you mean 'speedup'"):
        run(entry(values=unknown), store)
    no_share = [{"layer": "conv1", "quantity": "training speedup", "value": 1}]
    with pytest.raises(UsageError, match="expected one value P"):
        run(entry(values=no_share), store)


def test_settings_are_compared_without_simulating() -> None:
    values = [
        {"layer": "conv1", "quantity": "filter", "value": "5x5x1x6"},
        {"layer": "conv*", "quantity": "batch", "value": 1},
        {"layer": "conv1", "quantity": "batch", "value": "1/2", "disputed": True},
        {"layer": "conv1", "quantity": "device.l2.bytes", "value": 2, "unit": "MB"},
        {"layer": "conv1", "quantity": "device.l1.bytes", "value": 32, "unit": "KB"},
        {"layer": "conv1", "quantity": "added SRAM", "value": 0, "unit": "KB"},
        {"layer": "conv1", "quantity": "shader arrays", "value": 9},
    ]
    rows = run(entry(counts=True, values=values), None).rows
    assert [row.agrees for row in rows] == [True, True, False, True, False, True, None]
    assert [row.ours for row in rows] == ["5x5x1x6", "1", "1", "2", "16", "0", "not modelled"]
    with pytest.raises(UsageError, match="is no setting of unit 'dense'"):
        run(entry(counts=True, values=[{"layer": "conv1", "quantity": "arrays", "value": 9}]), None)
    with pytest.raises(UsageError, match="matches no point"):
        run(entry(counts=True, values=[{"layer": "fc", "quantity": "batch", "value": 9}]), None)


def test_what_does_not_apply_has_no_values() -> None:
    it = entry(not_applicable="a chip", simulates=None, values=FIGURE["values"][:1])
    value, *statements = run(it, None).rows
    assert [row.value.value for row in statements] == [one.says for one in it.statements] != []
    assert {(row.ours, row.agrees) for row in (value, *statements)} == {("not applicable", None)}


SHIPPED = [it for it in entries() if it.simulates]
SPARTAN = [it for it in SHIPPED if it.id.startswith("spartan")]


@pytest.mark.parametrize("published", SHIPPED, ids=lambda each: each.id)
def test_every_shipped_point_is_a_job_that_its_rows_are_about(published: Published) -> None:
    points = _points(published)
    planned = plan(published, points, {})
    for value in published.values:
        assert any(each.point.matches(value.layer, value.where) for each in planned), value
        assert published.counts or value.quantity in (*QUANTITIES, SHARE, TRAINING, NETWORKS)
    assert {*points.shows} <= {*QUANTITIES} and {it.check for it in published.statements} <= {*CHECKS}


@pytest.mark.parametrize("published", [it for it in SPARTAN if not it.counts], ids=lambda each: each.id)
def test_spartan_s_points_are_those_of_its_listing_whole_beside_the_dense_kernel_on_the_whole_l2(
    published: Published,
) -> None:
    planned = plan(published, _points(published), {})
    assert not any(each.config["sampling"] for pair in planned for each in (pair.ours, pair.baseline))
    assert {each.ours.config["weights"] for each in planned if each.ours.config["control"] == "engine"} == {"tile"}
    batches = {"alexnet": {16, 32, 64, 128}, "vgg16": {64}, "resnet18": {64}}  # table 6.5 and figures 6.23 to 6.26
    assert {each.ours.batch for each in planned} <= batches.get(published.recipe, {128, 256})
    assert {each.baseline.config["control"] for each in planned} == {"dense"}
    assert {each.baseline.device.l2.bytes for each in planned} == {2 * 2**20}


def test_spartan_s_settings_are_those_printed() -> None:
    rows = [row for name in ("6.3", "6.4", "6.5") for row in run(by_id(f"spartan-table-{name}"), None).rows]
    assert [row.value.layer for row in rows if row.agrees is False] == ["Layer B*"]  # 256 channels, said to be 512
    assert [row.value.quantity for row in rows if row.agrees is None] == ["shader arrays"]
    assert len(rows) == 7 + 5 + 3 * 3 + 3 * 3


def test_a_layer_of_the_engine_is_put_beside_the_dense_kernel(store: Store) -> None:
    """Spartan's figure of layer C, on two compute units and a smaller layer."""
    figure = by_id("spartan-figure-6.22")
    small: Settings = {"network": "lenet5", "layer": "features.3", "batch": 1, "device.cu.count": 2}
    done = run(figure, store, Simulating(settings=small))
    drawn, said = done.rows[:6], done.rows[6:]
    assert all(re.match(r"\d\.\d+( x$|, baseline 0\.\d+$)", row.ours) for row in drawn), [row.ours for row in drawn]
    assert [row.agrees is None for row in said] == [False, False, False, True, True]  # one batch size


def _points(published: Published) -> Any:
    assert published.simulates is not None
    return published.simulates


def pairs(*rows: tuple[Settings, float, float]) -> list[Pair]:
    """Points of one layer with settings, cycles, and the value of every counter; the baseline has 100 and 0.5."""
    (planned, *_) = plan(entry(), _points(entry()), {})
    ran = SimRun("conv1", "k", "mi6", {}, 100, dict.fromkeys(COUNTERS.values(), 0.5))
    found = []
    for settings, cycles, counted in rows:
        ours = replace(ran, cycles=int(cycles), counters=dict.fromkeys(ran.counters, counted))
        point = replace(planned.point, settings=settings)
        found.append(Pair.of(point, Result(planned.ours, ours), Result(planned.baseline, ran)))
    return found


A: Settings = {"batch": 16, "pattern": "iid"}
B: Settings = {"batch": 32, "pattern": "iid"}
S: Settings = {"batch": 16, "pattern": "spatial"}
R: Settings = {"batch": 16, "pattern": "recorded"}
SOFT: Settings = {"conversion": "deft-16q"}
UNIT: Settings = {"conversion": "dfu_cvt_16"}
NARROW: Settings = {"conversion": "dfu_cvt_8"}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("speedup_grows_with_batch", [(A, 50, 0), (B, 25, 0)], [(A, 25, 0), (B, 50, 0)]),
        ("transactions_fall_with_batch", [(B, 50, 0.1), (A, 50, 0.2)], [(A, 50, 0.1), (B, 50, 0.2)]),
        ("hit_rate_rises_with_batch", [(A, 50, 0.1), (B, 50, 0.2)], [(B, 50, 0.1), (A, 50, 0.2)]),
        ("clusters_beat_random", [(A, 50, 0), (S, 25, 0)], [(A, 25, 0), (S, 50, 0)]),
        ("recorded_beats_random", [(A, 50, 0), (R, 25, 0), (S, 75, 0)], [(A, 25, 0), (R, 50, 0), (S, 12, 0)]),
        ("unit_converts_in_half_the_time", [(SOFT, 50, 0.8), (UNIT, 50, 0.3)], [(SOFT, 50, 0.8), (UNIT, 50, 0.4)]),
        ("eight_bits_convert_less", [(UNIT, 50, 0.4), (NARROW, 50, 0.3)], [(UNIT, 50, 0.3), (NARROW, 50, 0.4)]),
        ("on_chip_bytes_halve", [(SOFT, 50, 0.25)], [(SOFT, 50, 0.25), (UNIT, 50, 0.4)]),
        ("transactions_fall", [(A, 50, 0.4), (B, 50, 0.3)], [(A, 50, 0.4), (B, 50, 0.6)]),
        ("latency_falls", [(A, 50, 0.4)], [(A, 50, 0.6)]),
        ("hit_rate_rises", [(A, 50, 0.6)], [(A, 50, 0.4)]),
    ],
)
def test_checks_see_both_outcomes(name: str, good: Any, bad: Any) -> None:
    assert name in CHECKS
    assert check(name, pairs(*good)).holds is True
    assert check(name, pairs(*bad)).holds is False
    assert check(name, []).holds is None


def test_use_of_on_chip_memory_is_that_of_a_network_s_time() -> None:
    """Two layers: the longer one decides."""
    first, second = pairs((A, 75, 0.5), (A, 25, 0.5))
    for pair, on, off in ((first, 0.6, 0.5), (second, 0.1, 0.5)):
        pair.counters.update({"on-chip use": (on, 0), "off-chip use": (off, 0), "arithmetic use": (0.3, 0)})
    held = check("on_chip_memory_is_used_most", [first])
    assert held.holds and held.ours.startswith("at 1 of 1 networks and kernels; on-chip 60% to 60%, off-chip 50%")
    held = check("on_chip_memory_is_used_most", [first, second])  # 0.75 * 0.6 + 0.25 * 0.1 = 0.475 on chip
    assert held.holds is False and "on-chip 48% to 48%" in held.ours
    assert check("on_chip_memory_is_used_most", []).holds is None


def test_a_check_that_is_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'latency_falls'"):
        check("latency_fall", [])


def test_quantities_are_over_the_baseline_s() -> None:
    (pair,) = pairs((A, 50, 0.25))
    found = {name: quantity(name, pair) for name in (SPEEDUP, TRANSACTIONS, HIT_RATE, LATENCY)}
    assert found == {SPEEDUP: 2.0, TRANSACTIONS: 0.5, HIT_RATE: 0.25, LATENCY: 0.5}


def test_recorded_points_are_judged_as_simulated_ones(store: Store) -> None:
    it = entry()
    points = _points(it)
    before = run(it, store).rows
    planned = plan(it, points, {})
    results = {job.key: execute(job) for each in planned for job in (each.ours, each.baseline)}
    rows = []
    for each in planned:
        pair = Pair.of(each.point, results[each.ours.key], results[each.baseline.key])
        row = {"entry": it.id, "point": each.point.title, "speedup": pair.speedup, "baseline_us": pair.baseline_us}
        rows.append(row | pair.columns())
    after = judged(it, points, recorded_pairs(it, points, rows))
    assert [(row.value, row.agrees) for row in after] == [(row.value, row.agrees) for row in before]
    (missing, *_) = judged(it, points, recorded_pairs(it, points, rows[1:]))
    assert missing.agrees is None and "not recorded" in missing.ours
