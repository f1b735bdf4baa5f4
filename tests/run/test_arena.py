"""No two buffers that live at once share a chunk, whatever their sizes and lives."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina.run.arena import Arena, Buffer, plan

BUFFERS = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=30
).map(lambda items: [Buffer(f"b{i}", size, first, first + length) for i, (size, first, length) in enumerate(items)])


@given(BUFFERS)
def test_chunks_are_never_shared_by_live_buffers(buffers: list[Buffer]) -> None:
    made = plan(buffers)
    for a in buffers:
        assert made.chunks[made.chunk_of[a.key]] >= a.nbytes
        for b in buffers:
            if a is not b and made.chunk_of[a.key] == made.chunk_of[b.key]:
                assert a.last < b.first or b.last < a.first


@given(BUFFERS)
def test_planned_memory_is_between_live_and_separate_bytes(buffers: list[Buffer]) -> None:
    made = plan(buffers)
    assert made.live_bytes <= made.planned_bytes <= made.separate_bytes


def test_a_chain_needs_two_chunks() -> None:
    # Each tensor is read by the next layer only: ping and pong.
    made = plan([Buffer(str(i), 100, i, i + 1) for i in range(10)])
    assert made.chunks == (100, 100)
    assert made.separate_bytes == 1000


def test_producers_and_consumers_share_memory_and_chunks_are_reused() -> None:
    arena = Arena(plan([Buffer("a", 400, 0, 1), Buffer("b", 200, 2, 3)]), torch.device("cpu"))
    a = arena.tensor("a", (10, 10), (10, 1), torch.float32)
    again = arena.tensor("a", (10, 10), (10, 1), torch.float32)
    b = arena.tensor("b", (5, 10), (10, 1), torch.float32)
    assert a.data_ptr() == again.data_ptr() == b.data_ptr()


def test_strides_with_gaps_or_overlaps_become_dense() -> None:
    arena = Arena(plan([Buffer("a", 4 * 24, 0, 0)]), torch.device("cpu"))
    gaps = arena.tensor("a", (2, 3, 4), (100, 10, 1), torch.float32)
    assert gaps.is_contiguous()
    last = arena.tensor("a", (2, 3, 2, 2), (12, 1, 6, 3), torch.float32)
    assert last.is_contiguous(memory_format=torch.channels_last)
    overlap = arena.tensor("a", (6, 4), (0, 1), torch.float32)
    assert overlap.is_contiguous()
