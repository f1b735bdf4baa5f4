"""Packing and unpacking of values in the unit's formats, to compute the accuracy of a product."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lamina.errors import MissingError, UsageError
from lamina.simulate.fission_unit import reference
from lamina.simulate.hierarchy.unit import Impl

Instruction = Literal["dfu_cvt_16", "dfu_cvt_8"]
PER_WORD: dict[str, int] = {"dfu_cvt_16": 2, "dfu_cvt_8": 4}


def take_apart(
    words: NDArray[np.uint32], instruction: Instruction, exponent: int = 4, *, impl: Impl = "core"
) -> NDArray[np.float32]:
    """Unpack the values of words, in order.

    Args:
        words: packed words, of any shape.
        instruction: the unpacking instruction.
        exponent: exponent bits of ``dfu_cvt_8``, 1 to 7.
        impl: compiled, or plain Python with identical results.

    Raises:
        UsageError: an invalid argument.
        MissingError: ``impl="core"`` without numba.
    """
    per_word = _checked(instruction, exponent, impl)
    flat = np.ascontiguousarray(words, dtype=np.uint32).ravel()
    bits = np.empty((len(flat), per_word), dtype=np.uint32)
    if impl == "core":
        from lamina.simulate.fission_unit import core

        core.dfu_cvt_16(flat, bits) if per_word == 2 else core.dfu_cvt_8(flat, exponent, bits)
    else:
        for place, word in enumerate(map(int, flat)):
            bits[place] = reference.dfu_cvt_16(word) if per_word == 2 else reference.dfu_cvt_8(word, exponent)
    return bits.view(np.float32).ravel()


def fuse(values: ArrayLike, instruction: Instruction, exponent: int = 4, *, impl: Impl = "core") -> NDArray[np.uint32]:
    """Truncate values and pack them into words for ``instruction``.

    Args:
        values: fp32, of any shape; their count is a multiple of the values per word.
        instruction, exponent, impl: as in ``take_apart``.

    Raises:
        UsageError: an invalid argument, or a count that is not a multiple of the values per word.
        MissingError: ``impl="core"`` without numba.
    """
    per_word = _checked(instruction, exponent, impl)
    bits = np.ascontiguousarray(values, dtype=np.float32).ravel().view(np.uint32)
    if len(bits) % per_word:
        raise UsageError(f"{len(bits)} values: expected a multiple of the {per_word} values per word of {instruction}")
    bits = bits.reshape(-1, per_word)
    words = np.empty(len(bits), dtype=np.uint32)
    if impl == "core":
        from lamina.simulate.fission_unit import core

        core.fuse_16(bits, words) if per_word == 2 else core.fuse_8(bits, exponent, words)
    else:
        for place, row in enumerate(bits.tolist()):
            words[place] = reference.fuse_16(*row) if per_word == 2 else reference.fuse_8(row, exponent)
    return words


def _checked(instruction: str, exponent: int, impl: str) -> int:
    """Values per word."""
    for name, value, known in (("instruction", instruction, tuple(PER_WORD)), ("impl", impl, ("core", "reference"))):
        if value not in known:
            raise UsageError(f"{name} = {value!r}: expected {' or '.join(map(repr, known))}")
    if not 1 <= exponent <= 7:
        raise UsageError(f"exponent = {exponent}: expected 1 to 7 bits")
    if impl == "core" and find_spec("numba") is None:
        raise MissingError("impl='core' needs numba: pip install 'lamina[sim]', or use impl='reference'")
    return PER_WORD[instruction]
