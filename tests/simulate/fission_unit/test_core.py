"""The compiled instructions against the readable ones, bit by bit."""

from typing import Any, get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lamina.simulate.fission_unit import fuse, take_apart, values
from lamina.simulate.fission_unit.values import Instruction

WORDS = arrays(np.uint32, st.integers(0, 8), elements=st.integers(0, 2**32 - 1))
INSTRUCTIONS = st.sampled_from(get_args(Instruction))


@given(WORDS, INSTRUCTIONS, st.integers(1, 7))
@settings(deadline=None)
def test_words_are_taken_apart_alike(words: Any, instruction: Any, exponent: int) -> None:
    core, plain = (take_apart(words, instruction, exponent, impl=impl) for impl in ("core", "reference"))
    assert core.dtype == np.float32
    assert core.view(np.uint32).tolist() == plain.view(np.uint32).tolist()


@given(WORDS, INSTRUCTIONS, st.integers(1, 7))
@settings(deadline=None)
def test_values_are_fused_alike(bits: Any, instruction: Any, exponent: int) -> None:
    whole = bits[: len(bits) // 4 * 4].view(np.float32)
    core, plain = (fuse(whole, instruction, exponent, impl=impl) for impl in ("core", "reference"))
    assert core.tolist() == plain.tolist()
    assert len(core) * values.PER_WORD[instruction] == len(whole)


@given(WORDS, INSTRUCTIONS, st.integers(1, 7))
@settings(deadline=None)
def test_what_was_cut_off_once_is_cut_off(words: Any, instruction: Any, exponent: int) -> None:
    assert fuse(take_apart(words, instruction, exponent), instruction, exponent).tolist() == words.tolist()
