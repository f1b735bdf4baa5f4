"""The join of kernels to ranges, against traces whose truth is known because they were made from it."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import LaminaError
from lamina.measure.attribution import Activity, Launch, Range, attribute


def kernel(correlation: int, duration_ns: int = 10, start_ns: int = 0, name: str = "gemm") -> Activity:
    return Activity(correlation, name, start_ns, duration_ns)


def launch(correlation: int, start_ns: int, name: str = "cudaLaunchKernel") -> Launch:
    return Launch(correlation, name, start_ns)


TWO = [Range("forward", 100, 200), Range("backward", 300, 400)]


def test_a_kernel_belongs_to_the_range_of_its_launch() -> None:
    result = attribute(TWO, [launch(1, 150), launch(2, 350)], [kernel(2, start_ns=360), kernel(1, start_ns=9999)])
    assert result.ranges == {"forward": (kernel(1, start_ns=9999),), "backward": (kernel(2, start_ns=360),)}
    assert result.outside == result.unattributed == result.unrecorded == ()


def test_both_ends_of_a_range_belong_to_it() -> None:
    result = attribute(TWO, [launch(1, 100), launch(2, 200), launch(3, 201)], [kernel(1), kernel(2), kernel(3)])
    assert [k.correlation for k in result.ranges["forward"]] == [1, 2]
    assert [k.correlation for k in result.outside] == [3]


def test_one_graph_launch_has_all_its_kernels_in_device_order() -> None:
    nodes = [
        kernel(7, start_ns=30, name="c"),
        kernel(7, start_ns=10, name="a"),
        kernel(7, start_ns=20, name="b"),
    ]
    result = attribute(TWO, [launch(7, 120, "cudaGraphLaunch")], nodes)
    assert [k.name for k in result.ranges["forward"]] == ["a", "b", "c"]


def test_a_kernel_without_a_launch_is_unattributed() -> None:
    result = attribute(TWO, [launch(1, 150)], [kernel(1, 30), kernel(2, 10, start_ns=160)])
    assert result.unattributed == (kernel(2, 10, start_ns=160),)
    assert (result.known_ns, result.unattributed_ns) == (30, 10)


def test_an_ambiguous_correlation_id_is_unattributed() -> None:
    result = attribute(TWO, [launch(1, 150), launch(1, 350)], [kernel(1)])
    assert result.unattributed == (kernel(1),)
    nested = attribute(TWO, [launch(1, 150), launch(1, 151, "cuLaunchKernelEx")], [kernel(1)])
    assert nested.ranges["forward"] == (kernel(1),)


def test_a_launch_without_an_activity_is_reported() -> None:
    silent = [
        launch(1, 150),
        launch(2, 160, "cuLaunchKernelEx"),
        launch(3, 170, "cudaLaunchCooperativeKernel"),
        launch(4, 180, "cudaMemcpyAsync"),
        launch(5, 190, "cudaStreamIsCapturing"),
        launch(6, 250),
    ]
    result = attribute(TWO, silent, [kernel(9)])
    assert [item.correlation for item in result.unrecorded] == [1, 2, 3]


def test_a_range_without_kernels_is_empty() -> None:
    assert attribute(TWO, [], []).ranges == {"forward": (), "backward": ()}


def test_overlapping_or_repeated_ranges_are_rejected() -> None:
    with pytest.raises(LaminaError, match=r"'a' and 'b' overlap"):
        attribute([Range("b", 5, 20), Range("a", 0, 10)], [], [])
    with pytest.raises(LaminaError, match="duplicate key"):
        attribute([Range("a", 0, 10), Range("a", 20, 30)], [], [])


@dataclass(frozen=True)
class Truth:
    ranges: list[Range[int]]
    launches: list[Launch]
    activities: list[Activity]
    home: dict[int, int | str]  # correlation id -> range key, 'outside' or 'lost'


@st.composite
def traces(draw: st.DrawFn) -> Truth:
    """Ranges with gaps on a line; each correlation id is given a home first, then records that imply it."""
    count = draw(st.integers(1, 6))
    edges = sorted(draw(st.sets(st.integers(1, 10_000), min_size=2 * count, max_size=2 * count)))
    ranges = [Range(i, edges[2 * i], edges[2 * i + 1]) for i in range(count)]
    gaps = [0, *(moment for moment in range(edges[0], edges[-1] + 2) if not any_holds(ranges, moment))]
    launches, activities, home = [], [], {}
    for correlation in draw(st.sets(st.integers(1, 1000), max_size=25)):
        where: int | str = draw(st.sampled_from([*range(count), "outside", "lost"]))
        home[correlation] = where
        if isinstance(where, int):
            moment = draw(st.integers(ranges[where].start_ns, ranges[where].end_ns))
            launches.append(launch(correlation, moment))
        elif where == "outside":
            launches.append(launch(correlation, draw(st.sampled_from(gaps))))
        for _ in range(draw(st.integers(1, 3))):
            start, duration = draw(st.integers(0, 20_000)), draw(st.integers(0, 500))
            activities.append(Activity(correlation, f"k{len(activities)}", start, duration))
    shuffled = (
        draw(st.permutations(launches)),
        draw(st.permutations(activities)),
        draw(st.permutations(ranges)),
    )
    return Truth(shuffled[2], shuffled[0], shuffled[1], home)


def any_holds(ranges: list[Range[int]], moment: int) -> bool:
    return any(item.start_ns <= moment <= item.end_ns for item in ranges)


@given(traces())
def test_every_activity_is_attributed_exactly_once(truth: Truth) -> None:
    result = attribute(truth.ranges, truth.launches, truth.activities)
    found = {activity.name: key for key, home in result.ranges.items() for activity in home}
    found |= {activity.name: "outside" for activity in result.outside}
    found |= {activity.name: "lost" for activity in result.unattributed}
    assert found == {activity.name: truth.home[activity.correlation] for activity in truth.activities}

    homes = [*result.ranges.values(), result.outside, result.unattributed]
    assert sum(map(len, homes)) == len(truth.activities)
    assert result.known_ns + result.unattributed_ns == sum(activity.duration_ns for activity in truth.activities)
    assert all(list(home) == sorted(home, key=lambda item: item.start_ns) for home in homes)
    assert result.unrecorded == ()
    assert set(result.ranges) == {item.key for item in truth.ranges}
