import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulate.small import job, product

from lamina.record import SimRun
from lamina.simulate.design_space import Design, DesignPoint, designs
from lamina.simulate.jobs import Result


def result(cycles: int | None, l2: int = 16384, layer: str = "conv1", batch: int = 2) -> Result:
    asked = dataclasses.replace(job(product(layer), {"l2.bytes": l2}), batch=batch)
    run = SimRun(layer, "k", "mi6", asked.config, cycles, {}) if cycles else None
    return Result(asked, run, "" if cycles else "it does not fit")


def point(name: str, own: list[Result], baseline: list[Result]) -> DesignPoint:
    return DesignPoint({"name": name}, tuple(own), tuple(baseline))


def test_layers_are_summed_before_they_are_compared() -> None:
    base = [result(100), result(300, layer="conv2")]
    (one,) = designs([point("a", [result(50), result(150, layer="conv2")], base)])
    assert (one.layers, one.microseconds, one.speedup, one.front) == (2, pytest.approx(0.2), pytest.approx(2), True)
    assert one.to_dict()["name"] == "a" and one.to_dict()["network"] == "net"


def test_a_clock_is_part_of_the_time() -> None:
    fast = Result(job(device={"clock_ghz": 2.0}), SimRun("conv1", "k", "mi6", {}, 100, {}))
    (one,) = designs([point("a", [fast], [result(100)])])
    assert one.speedup == pytest.approx(2)


def test_a_missing_layer_leaves_no_speedup() -> None:
    base = [result(100)]
    whole, lacking, alone = designs(
        [point("a", base, base), point("b", [result(None)], base), point("c", base, [result(None)])]
    )
    assert whole.front and whole.speedup == 1
    assert lacking.speedup is None and lacking.reason == "conv1: it does not fit" and not lacking.front
    assert alone.speedup is None and alone.reason == "baseline: conv1: it does not fit"


def test_workloads_have_fronts_of_their_own() -> None:
    small, large = result(100), result(1000, batch=4)
    assert [one.front for one in designs([point("a", [small], [small]), point("a", [large], [large])])] == [True, True]


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from([16384, 32768, 65536])), min_size=1, max_size=9))
def test_the_front_holds_what_nothing_beats(found: list[tuple[int, int]]) -> None:
    """Against the definition, pair by pair."""
    base = [result(6)]
    made = designs([point(str(i), [result(cycles, l2)], base) for i, (cycles, l2) in enumerate(found)])

    def beats(a: Design, b: Design) -> bool:
        assert a.speedup is not None and b.speedup is not None
        better = (a.speedup > b.speedup, a.sram_bytes < b.sram_bytes)
        return a.speedup >= b.speedup and a.sram_bytes <= b.sram_bytes and any(better)

    for one in made:
        assert one.front == (not any(beats(other, one) for other in made))
