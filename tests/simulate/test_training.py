import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError, UsageError
from lamina.record import LayerRun, Sparsity, Timing
from lamina.simulate.training import histogram, sparsity_histograms, time_shares, training_speedup

share = st.floats(0.01, 0.99)
weights = st.floats(0.01, 1)
gains = st.floats(0.2, 50)


@st.composite
def materials(draw: st.DrawFn) -> tuple[float, dict[str, float], dict[str, list[float]], dict[str, list[float]]]:
    layers, bins = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    parts = draw(st.lists(weights, min_size=layers, max_size=layers))
    shares = {f"conv{i}": part / sum(parts) for i, part in enumerate(parts)}
    histograms, speedups = {}, {}
    for layer in shares:
        counts = draw(st.lists(weights, min_size=bins, max_size=bins))
        histograms[layer] = [count / sum(counts) for count in counts]
        speedups[layer] = draw(st.lists(gains, min_size=bins, max_size=bins))
    return draw(share), shares, histograms, speedups


def test_by_hand() -> None:
    """Four fifths of the time in two layers; the first halves a quarter of its time, the second all of it."""
    done = training_speedup(
        0.8,
        {"a": 0.75, "b": 0.25},
        {"a": [0.75, 0.25], "b": [0.0, 1.0]},
        {"a": [1.0, 2.0], "b": [1.0, 2.0]},
    )
    assert done.layers[0].after == pytest.approx(0.6 * 0.875)
    assert done.layers[1].after == pytest.approx(0.1)
    assert done.speedup == pytest.approx(1 / (0.2 + 0.525 + 0.1))
    assert done.layers[1].speedup == pytest.approx(2)
    assert done.layers_speedup == pytest.approx(0.8 / 0.625)
    assert done.bound == pytest.approx(5)


@pytest.mark.parametrize(("p", "conv", "whole"), [(0.8740, 2.81, 2.29), (0.8858, 2.11, 1.87), (0.8220, 1.76, 1.55)])
def test_published_trainings_follow_from_the_speedup_of_their_convolutions(p: float, conv: float, whole: float) -> None:
    """AlexNet, VGG-16, ResNet-18, with the convolutions' time-weighted speedup that the published one implies."""
    assert training_speedup(p, {"all": 1.0}, {"all": [1.0]}, {"all": [conv]}).speedup == pytest.approx(whole, abs=0.01)


@given(materials())
def test_nothing_faster_is_nothing_gained(material: tuple) -> None:  # type: ignore[type-arg]
    p, shares, histograms, speedups = material
    ones = {layer: [1.0] * len(row) for layer, row in speedups.items()}
    assert training_speedup(p, shares, histograms, ones).speedup == pytest.approx(1)


@given(materials(), st.floats(1, 10), st.data())
def test_a_faster_bin_never_slows_the_training(material: tuple, factor: float, data: st.DataObject) -> None:  # type: ignore[type-arg]
    p, shares, histograms, speedups = material
    layer = data.draw(st.sampled_from(sorted(shares)))
    one = data.draw(st.integers(0, len(speedups[layer]) - 1))
    faster = speedups | {layer: [s * factor if j == one else s for j, s in enumerate(speedups[layer])]}
    before = training_speedup(p, shares, histograms, speedups).speedup
    assert training_speedup(p, shares, histograms, faster).speedup >= before * (1 - 1e-12)


@given(materials())
def test_the_rest_of_the_training_bounds_it(material: tuple) -> None:  # type: ignore[type-arg]
    done = training_speedup(*material)
    assert done.speedup < done.bound
    assert done.other + sum(layer.before for layer in done.layers) == pytest.approx(1)
    best = max(max(row) for row in material[3].values())
    assert done.layers_speedup <= best * (1 + 1e-9)


GOOD = {"share": 0.5, "shares": {"a": 1.0}, "histograms": {"a": [0.5, 0.5]}, "speedups": {"a": [1.0, 2.0]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": math.nan}, "P = nan: expected a fraction above 0"),
        ({"share": 1.5}, "P = 1.5"),
        ({"shares": {}}, "at least one layer"),
        ({"shares": {"a": math.nan}}, r"C = \[nan\]: expected fractions"),
        ({"shares": {"a": 0.9}}, "C: expected fractions that sum to 1, got 0.9"),
        ({"histograms": {"a": [0.5, 0.4]}}, r"R\[a\]: expected fractions that sum to 1, got 0.9"),
        ({"histograms": {"a": [math.nan, 1.0]}}, r"R\[a\] = \[nan, 1.0\]: expected fractions"),
        ({"histograms": {"a": [1.5, -0.5]}}, r"R\[a\] = \[1.5, -0.5\]"),
        ({"histograms": {}}, r"R\[a\] is missing"),
        ({"speedups": {}}, r"S\[a\] is missing"),
        ({"speedups": {"a": [1.0]}}, r"S\[a\]: expected 2 speedups, one for each bin of R, got 1"),
        ({"speedups": {"a": [1.0, math.nan]}}, r"S\[a\] = \[1.0, nan\]: expected finite"),
        ({"speedups": {"a": [1.0, 0.0]}}, "above 0"),
        ({"speedups": {"a": [1.0, 2.0], "b": [1.0, 1.0]}}, "S: b not in C"),
    ],
)
def test_invalid_values_are_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        training_speedup(**(GOOD | change))  # type: ignore[arg-type]


def test_all_faults_come_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        training_speedup(math.nan, {"a": 0.5, "b": 0.5}, {"a": [0.1]}, {"b": [math.inf]}, source="alexnet")
    assert len(caught.value.faults) == 5
    assert all(line.startswith("alexnet: ") for line in str(caught.value).splitlines())


def test_a_histogram_counts_each_observation_once() -> None:
    assert histogram([0.0, 0.1, 0.25, 1.0], [0.0, 0.25, 0.5, 1.0]) == (0.5, 0.25, 0.25)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 9))
def test_histograms_are_shares(values: list[float], bins: int) -> None:
    edges = [j / bins for j in range(bins + 1)]
    shares = histogram(values, edges)
    assert sum(shares) == pytest.approx(1)
    assert sum(shares[:-1]) * len(values) == pytest.approx(sum(value < edges[-2] for value in values))


@pytest.mark.parametrize(
    ("values", "edges", "message"),
    [
        ([], [0.0, 1.0], "none at all"),
        ([math.nan], [0.0, 1.0], "got nan"),
        ([1.1], [0.0, 1.0], "got 1.1"),
        ([0.5], [0.0], "two increasing edges"),
        ([0.5], [0.0, 0.0, 1.0], "two increasing edges"),
        ([0.5], [0.0, math.nan], "two increasing edges"),
    ],
)
def test_histograms_refuse(values: list[float], edges: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        histogram(values, edges)


def test_histograms_come_from_a_monitor() -> None:
    seen = [Sparsity("a", "input", i, density) for i, density in enumerate((0.9, 0.6, 0.2, 0.1))]
    seen += [Sparsity("b", "input", 0, 1.0), Sparsity("a", "output", 0, 0.5)]
    assert sparsity_histograms(seen, "input", [0.0, 0.5, 1.0]) == {"a": (0.5, 0.5), "b": (1.0, 0.0)}
    with pytest.raises(UsageError, match="no observations of 'imput': did you mean 'input'"):
        sparsity_histograms(seen, "imput", [0.0, 1.0])


def row(layer: str, phase: str, us: float) -> LayerRun:
    return LayerRun(
        layer, "convolution", 0, phase, "dense", "fp32", "nchw", 8, "gpu", ((8, 3, 4, 4),), (8, 2, 4, 4), 1, 1, 1,
        "ok", timing=Timing("cpu", "-", us, us, us, 3),
    )  # fmt: skip


def test_shares_come_from_a_benchmark() -> None:
    rows = [row("a", "forward", 10), row("a", "backward_weight", 20), row("b", "forward", 50), row("fc", "forward", 20)]
    p, c = time_shares([*rows, row("net", "step", 90)], ["a", "b"])
    assert p == pytest.approx(0.8)
    assert c == pytest.approx({"a": 0.375, "b": 0.625})


def test_shares_need_every_time() -> None:
    a, b = row("a", "forward", 10), row("b", "forward", 50)
    with pytest.raises(UsageError, match="expected a time of c"):
        time_shares([a, b], ["a", "c"])
    with pytest.raises(UsageError, match="each once"):
        time_shares([a, b], ["a", "a"])
    with pytest.raises(UsageError, match="b forward failed"):
        time_shares([a, replace(b, outcome="failed", reason="out of memory", timing=None)], ["a"])
    with pytest.raises(UsageError, match="one implementation, precision"):
        time_shares([a, replace(b, batch=16)], ["a"])
