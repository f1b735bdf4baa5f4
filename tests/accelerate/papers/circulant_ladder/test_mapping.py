"""Grids, blocks and the two metrics, against what the text says of them and against every access counted."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

import pytest

from lamina.accelerate.papers.circulant_ladder import mapping

A = {k: mapping.Sizes(n=128, p=4096 // k, q=8192 // k, f=k // 2 + 1) for k in (16, 32, 64)}
"""The dissertation's layer A."""


@pytest.mark.parametrize(
    ("k", "o1_block", "o2_block"),
    [(16, (32, 32), (9, 64)), (32, (32, 32), (17, 32)), (64, (64, 16), (33, 16))],
)
def test_blocks_have_the_threads_that_the_rules_give(
    k: int, o1_block: tuple[int, int], o2_block: tuple[int, int]
) -> None:
    for phase in mapping.ROLES:
        assert mapping.o1(phase, A[k]).block == (*o1_block, 1)
        assert mapping.o2(phase, A[k]).block == mapping.fusion(phase, A[k]).block == (*o2_block, 1)
    assert o2_block[0] * o2_block[1] == 512 + 1024 // k  # section 7.3.2.1


def test_grids_follow_the_roles_of_the_axes() -> None:
    sizes = A[16]  # 128 rows, 256 by 512 blocks
    assert mapping.table_multiply("forward", sizes).grid == (512, 256, 128)
    assert mapping.table_sum("forward", sizes).grid == (256, 128, 1)
    assert mapping.table_sum("backward_data", sizes).grid == (512, 128, 1)
    assert mapping.table_sum("backward_weight", sizes).grid == (512, 256, 1)
    assert mapping.o1("forward", sizes).grid == (512 // 32, 256 // 32, 128)
    assert mapping.o1("backward_data", sizes).grid == (256 // 32, 512 // 32, 128)
    assert mapping.o1("backward_weight", sizes).grid == (128 // 32, 512 // 32, 256)
    assert mapping.o2("forward", sizes).grid == (512, 256 // 64, 128)
    assert mapping.o2("backward_weight", sizes).grid == (128, 512 // 64, 256)
    assert mapping.fusion("forward", sizes).grid == (1, 256 // 64, 128)
    assert mapping.fusion("backward_data", sizes).grid == (1, 512 // 64, 128)
    assert mapping.fusion("backward_weight", sizes).grid == (1, 512 // 64, 256)


def test_the_last_part_of_an_axis_has_a_block_too() -> None:
    sizes = mapping.Sizes(n=3, p=33, q=65, f=9)
    assert mapping.o1("forward", sizes).grid == (3, 2, 3)
    assert mapping.fusion("backward_data", sizes).grid == (1, 2, 3)


def test_reuse_is_what_the_text_says() -> None:
    first = mapping.NATURAL["forward"][0]
    assert [mapping.reuse(mapping.table_multiply("forward", A[k]), first) for k in A] == [1, 1, 1]
    o1 = [mapping.reuse(mapping.o1("forward", A[k]), first) for k in A]
    o2 = [mapping.reuse(mapping.o2("forward", A[k]), first) for k in A]
    assert o1 == [32, 32, 16]  # equation 7.5
    assert o2 == [64, 32, 16]  # equation 7.6: better than O1 below 32, alike from there
    assert mapping.reuse(mapping.o1("forward", A[16]), ("p", "q", "f")) == 1
    assert mapping.reuse(mapping.o2("forward", mapping.Sizes(4, 3, 2, 9)), first) == 3  # no more rows than blocks


@pytest.mark.parametrize("k", A)
def test_o2_reads_side_by_side_in_the_gradients_and_far_apart_forward(k: int) -> None:
    sizes = A[k]
    for phase in ("backward_data", "backward_weight"):
        assert mapping.distance(mapping.o2(phase, sizes), mapping.NATURAL[phase][1], sizes) == 1
    forward = mapping.o2("forward", sizes)
    about = sizes.q * sizes.f / forward.block[0]  # q k' / N
    assert mapping.distance(forward, ("p", "q", "f"), sizes) == pytest.approx(about, rel=0.07)
    # The layout printed leaves it there; the one that its reason asks for makes it 1.
    assert mapping.distance(forward, ("p", "f", "q"), sizes) == pytest.approx(about, rel=0.07)
    assert mapping.distance(forward, ("q", "p", "f"), sizes) == 1


@pytest.mark.parametrize("k", A)
@pytest.mark.parametrize("phase", mapping.ROLES)
def test_o2_writes_further_apart_than_o1_and_o1_reads_further(phase: mapping.Phase, k: int) -> None:
    sizes = A[k]
    m1, m2, m3 = mapping.ROLES[phase]
    o1, o2, out = mapping.o1(phase, sizes), mapping.o2(phase, sizes), (m3, m2, m1, "f")
    assert mapping.distance(o2, out, sizes) > 1.8 * mapping.distance(o1, out, sizes)
    read = mapping.distance(o1, (m2, m1, "f"), sizes)
    assert read == pytest.approx(sizes[m1] * sizes.f / o1.block[0], rel=0.07)
    if phase != "forward":
        assert read > mapping.distance(o2, mapping.NATURAL[phase][1], sizes)


@pytest.mark.parametrize("k", A)
def test_sums_read_nearer_once_their_axis_is_next_to_the_innermost(k: int) -> None:
    sizes = A[k]
    for phase, (m1, m2, m3) in mapping.ROLES.items():
        launch = mapping.table_sum(phase, sizes)
        assert mapping.distance(launch, (m3, m2, m1, "f"), sizes) == sizes[m1]
        before = mapping.distance(launch, ("n", "p", "q", "f"), sizes)
        assert before == sizes[m1] if phase == "forward" else before > 100 * sizes[m1]


Access = tuple[tuple[int, ...], str, dict[str, int]]


def accesses(name: str, phase: mapping.Phase, sizes: mapping.Sizes, limit: int) -> Iterator[Access]:
    """Thread, tensor and axes of everything that the first thread block touches, loop by loop as the kernels go."""
    m1, m2, m3 = mapping.ROLES[phase]
    k, length = 2 * (sizes.f - 1), sizes.f
    if name == "o1":
        width = max(32, k)
        for x, y, e in product(range(width), range(limit // width), range(min(width, sizes[m1]) * length)):
            if y < sizes[m2] and e % width == x:
                at = {m1: e // length, "f": e % length, m2: y, m3: 0}
                yield from (((x, y), tensor, at) for tensor in ("a", "b", "out"))
        return
    for f, y in product(range(length), range(limit // k if name in ("o2", "fusion") else 1)):
        for t in range(sizes[m1] if name in ("fusion", "table_sum") else 1):
            if y < sizes[m2]:
                at = {m1: t, m2: y, m3: 0, "f": f}
                yield from (((f, y), tensor, at) for tensor in ("a", "b", "out"))


@pytest.mark.parametrize("sizes", [mapping.Sizes(2, 3, 5, 5), mapping.Sizes(35, 40, 37, 9)], ids=str)
@pytest.mark.parametrize("phase", mapping.ROLES)
@pytest.mark.parametrize("name", ["table_multiply", "table_sum", "o1", "o2", "fusion"])
def test_metrics_equal_a_count_of_every_access(name: str, phase: mapping.Phase, sizes: mapping.Sizes) -> None:
    m1, m2, m3 = mapping.ROLES[phase]
    products = name in ("table_multiply", "o1", "o2")
    layouts = {"a": (m3, m1, "f"), "b": (m2, m1, "f"), "out": (m3, m2, m1, "f") if products else (m3, m2, "f")}
    users: dict[str, dict[int, set[tuple[int, ...]]]] = {tensor: defaultdict(set) for tensor in layouts}
    for thread, tensor, at in accesses(name, phase, sizes, 128):
        strides = sizes.strides(layouts[tensor])
        users[tensor][sum(at[axis] * stride for axis, stride in strides.items())].add(thread)
    launch = getattr(mapping, name)(phase, sizes, 128)
    x, y, z = launch.block
    for tensor, layout in layouts.items():
        found = users[tensor]
        assert mapping.reuse(launch, layout) == max(map(len, found.values())), tensor
        assert mapping.distance(launch, layout, sizes) == (max(found) - min(found) + 1) / (x * y * z), tensor
