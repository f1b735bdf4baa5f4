"""Rules judge rows: each has both outcomes, and insufficient rows decide nothing."""

from typing import Any

import pytest

from lamina.errors import UsageError
from lamina.pipeline.reproduce.measured import MODULES, measurement
from lamina.pipeline.reproduce.measured.circulant_layers import is_large
from lamina.pipeline.reproduce.measured.front import front
from lamina.pipeline.reproduce.measured.judging import INSUFFICIENT, Measurement, Scope, fastest, judge, share
from lamina.pipeline.reproduce.recorded import names, recorded
from lamina.spec.published import Published, PublishedStatement, PublishedValue, entries


def entry(**fields: Any) -> Published:
    return Published(id="a", title="t", paper="p", place="x", recipe="alexnet", **fields)


def value(layer: str, quantity: str, published: float = 1.0, **fields: Any) -> PublishedValue:
    return PublishedValue(layer=layer, quantity=quantity, value=published, **fields)


def row(impl: str, us: float, **fields: Any) -> dict[str, Any]:
    return {
        "workload": "alexnet",
        "layer": "whole",
        "phase": "step",
        "batch": 1,
        "impl": impl,
        "median_us": us,
    } | fields


def measured(name: str, it: PublishedValue, rows: list[dict[str, Any]]) -> float | None:
    (beside,) = judge(entry(values=(it,)), measurement(name), rows)
    return beside.measured


@pytest.mark.parametrize("name", [name for name in MODULES if measurement(name).recorded])
def test_insufficient_rows_decide_nothing(name: str) -> None:
    own = [one for one in entries() if one.measures == name]
    rows = [row for one in own for row in judge(one, measurement(name), []) if row.value.quantity != "P"]  # a profile's
    assert all(each.agrees is None and each.measured is None for each in rows)
    assert {each.ours.partition(" of ")[0] for each in rows} <= {
        "no simulation with masks recorded over a training", "no recorded profile",
        INSUFFICIENT, "not applicable", "not in these rows: measure on a GPU (on-chip-fission[keep=0.5])",
        "hit rates with L1 on and off were not counted",
    }  # fmt: skip


@pytest.mark.parametrize("one", [one for one in entries() if one.measures], ids=lambda one: one.id)
def test_entries_have_rules_and_every_measurement_has_recorded_rows(one: Published) -> None:
    known = measurement(one.measures)
    assert {it.quantity for it in one.values if not it.not_applicable} <= known.values.keys()
    assert {it.check for it in one.statements} <= known.statements.keys()
    assert {*known.recorded} <= {*names()} and (known.recorded or known.run)


def test_a_rule_that_no_entry_has_is_an_error() -> None:
    with pytest.raises(UsageError, match="no rule computes the quantity 'q'"):
        judge(entry(values=(value("a", "q"),)), Measurement(()), [])
    with pytest.raises(UsageError, match="no rule verifies 'c'"):
        judge(entry(statements=(PublishedStatement(about="a", says="b", check="c"),)), Measurement(()), [])
    with pytest.raises(UsageError, match="measurement 'elimnation' is unknown: did you mean 'elimination'"):
        measurement("elimnation")
    with pytest.raises(UsageError, match="there are no recorded rows"):
        recorded("nothing")


def test_a_share_counts_cases() -> None:
    assert share("layers", [True, False, True]) == ("2 of 3 layers", False)
    assert share("layers", iter([True])) == ("1 of 1 layers", True)
    with pytest.raises(ValueError, match="expected layers, got none"):
        share("layers", [])


def test_the_better_layout_counts() -> None:
    rows = [row("dense", 4.0, layout="nchw"), row("dense", 3.0, layout="nhwc"), row("deft", 1.0)]
    assert fastest(rows, impl="dense") == 3.0


@pytest.mark.parametrize(("after", "ratio"), [(2.0, 5.0), (20.0, 0.5)])
def test_ladder_ratios_are_computed_from_rows(after: float, ratio: float) -> None:
    rows = [
        row("dense", 10.0, layer="A", block_size=16), row("dense", 1.0, layer="A", block_size=32),
        row("ladder[rung=fusion,block_size=16]", after, layer="A", block_size=16),
    ]  # fmt: skip
    assert measured("circulant-ladder", value("A k=16", "fusion over dense"), rows) == ratio
    assert measured("circulant-ladder", value("A k=32", "fusion over dense"), rows) is None


def test_means_over_layers_weigh_repeated_layers_and_large_ones_only() -> None:
    kernel = "circulant[block_size=64,impl=kernel]"
    rows = [
        row("dense", 8.0, layer="alexnet conv2", times=1), row(kernel, 4.0, layer="alexnet conv2", times=1),
        row("dense", 8.0, layer="alexnet conv3", times=2), row(kernel, 1.0, layer="alexnet conv3", times=2),
        row("dense", 9.0, layer="vgg16 conv1", times=1), row(kernel, 1.0, layer="vgg16 conv1", times=1),
    ]  # fmt: skip
    assert measured("circulant-layers", value("AlexNet convolutions", "kernel over dense"), rows) == (2 + 8 + 8) / 3
    assert is_large({"workload": "tdnn", "size": 1024}) and not is_large({"workload": "tdnn", "size": 512})
    assert is_large({"workload": "lstm", "size": 512}) and not is_large({"workload": "linear", "size": 9999})


@pytest.mark.parametrize(("gather", "swap", "ratio"), [(7.0, 6.0, 2.0), (6.0, 7.0, 0.5)])
def test_reorganization_is_compared_without_the_product(gather: float, swap: float, ratio: float) -> None:
    with_ = "eliminated[keep=0.5,impl={}]".format
    rows = [row(with_("slice,prefix"), 5.0), row(with_("gather"), gather), row(with_("swap"), swap)]
    assert measured("elimination", value("AlexNet", "reordering over copying"), rows) == ratio


def test_the_slowest_layer_bounds_the_speedup_of_all() -> None:
    selected = "eliminated[keep=0.5,impl=fastest]"
    rows = [row("dense", 4.0, layer="a"), row(selected, 2.0, layer="a"), row("dense", 3.0, layer="b")]
    assert measured("elimination", value("all", "speedup"), [*rows, row(selected, 3.0, layer="b")]) == 1.0
    assert measured("elimination", value("all", "speedup"), [*rows, row(selected, 1.0, layer="b")]) == 2.0


def test_networks_are_compared_at_their_largest_batch() -> None:
    rows = [
        row("dense", 1.0), row("deft[ways=fastest]", 1.0), row("dense", 8.0, batch=16),
        row("deft[ways=fastest]", 2.0, batch=16), row("magnitude", 16.0, batch=16),
    ]  # fmt: skip
    assert measured("deft-library", value("six", "elimination speedup"), rows) == 4.0
    assert measured("deft-networks", value("AlexNet", "slowdown against dense"), rows) == 2.0
    assert measured("deft-networks", value("AlexNet", "slowdown against elimination"), rows) == 8.0
    assert measured("deft-networks", value("six", "speedup of both"), rows) is None


def test_fission_is_compared_with_the_fastest_tile_in_fp32() -> None:
    rows = [
        row("simt", us, format=name) for name, us in (("float", 4.0), ("float", 3.0), ("deft16", 2.0), ("half", 1.0))
    ]
    assert measured("on-chip-fission", value("six", "fission speedup"), rows) == 1.5


def test_conversion_is_a_share_of_all_parts() -> None:
    def part(impl: str, what: str, us: float, zeros: float = 80.0) -> dict[str, Any]:
        return row(impl, us, what=what, zeros=zeros)

    rows = [
        part("csr", "convert, called", 6.0), part("csr", "product", 2.0), part("dense", "im2col", 2.0),
        part("dense", "convolution", 3.0), part("nonzero", "convolution", 4.0), part("dense", "product", 3.0),
    ]  # fmt: skip
    share_of_time = value("features.4", "dense-to-sparse conversion, share of the time")
    assert measured("sparse-libraries", share_of_time, rows) == 60.0
    assert measured("deft-networks", value("AlexNet", "break-even density"), rows) == 20.0
    rule = measurement("sparse-libraries").statements["no_speedup_at_80"]
    assert rule(rows)[1] is True
    assert rule([*rows, part("nonzero", "convolution", 1.0)])[1] is False


@pytest.mark.parametrize(("added", "ours"), [(0.15, 15.0), (-0.001, 0.0)])
def test_overheads_below_zero_are_none(added: float, ours: float) -> None:
    rows = [row("monitor[sampled]", 1.0, added=added)]
    assert measured("monitor-overhead", value("AlexNet", "sparsity monitor"), rows) == pytest.approx(ours)
    noisy = [row("monitor[sampled]", 1.0, added=-0.2)]
    assert measured("monitor-overhead", value("AlexNet", "sparsity monitor"), noisy) is None


def test_gains_are_the_largest_of_a_change() -> None:
    change = "without_activations"
    rows = [row("dense", 1.0, change=change, measured_gain=gain, precision="fp32") for gain in (-0.1, 0.05, 0.02)]
    assert measured("what-if", value("whole step", change), rows) == 5.0
    assert measured("what-if", value("best weight gradient", "l1_bypass"), rows) is None


def test_counted_tables_follow_from_networks() -> None:
    networks = measurement("networks")
    assert networks.run is not None
    rows = networks.run(Scope("cpu"))
    by_name = {one["workload"]: one for one in rows}
    assert (by_name["resnet152"]["residual unit B"], by_name["resnet34"]["residual unit A"]) == (50, 16)
    assert networks.statements["layers_grow"](rows)[1] is True
    shrunk = [one | {"weight layers": 1, "gflops": 1.0 if one["workload"] == "alexnet2012" else 9.0} for one in rows]
    assert networks.statements["layers_grow"](shrunk)[1] is False
    assert networks.statements["operations_grow"](rows)[1] is False
    assert networks.statements["operations_grow"](shrunk)[1] is True
    launches = measurement("launches")
    rule = launches.statements["multiplication_griddim_is_qpn"]
    assert rule([{"workload": "multiplication gridDim", "launch": (5, 3, 2)}])[1] is True
    assert rule([{"workload": "multiplication gridDim", "launch": (3, 5, 2)}])[1] is False


def test_fronts_fall_faster_or_do_not() -> None:
    rules = measurement("accuracy-front").statements
    rows: list[dict[str, Any]] = [
        {"impl": "eliminated", "accuracy": accuracy, "reduction": reduction}
        for reduction, accuracy in ((10, 30.0), (2, 86.0), (4 / 3, 89.0), (1, 91.0))
    ]
    rows += [{"impl": "dense", "accuracy": 90.0, "reduction": 1}, {"impl": "dense-tuned", "accuracy": 0.0}]
    assert front(rows) == [(0, 90), (pytest.approx(0.25), 89), (0.5, 86), (0.9, 30)]
    text, holds = rules["accuracy_falls_faster"](rows)
    assert holds and text == "3.4 points lost at 45% fewer multiplications, 56.6 more at 90%"
    assert rules["useful_points_exist"](rows) == ("fewer multiplications within 5 points: 1.33x, 2.00x", True)
    early = [row | {"accuracy": 30.0 if row["reduction"] > 1 else 90.0} for row in rows[:-1]]
    assert rules["accuracy_falls_faster"](early)[1] is False
    assert rules["useful_points_exist"](early)[1] is False
    for rule in rules.values():
        with pytest.raises(LookupError):
            rule(rows[:4])
    with pytest.raises(ValueError, match="a front of several points"):
        rules["accuracy_falls_faster"](rows[2:])
