"""The dense matrix multiplication of the AMD APP SDK, as shipped with MGPUSim, as a phase program."""

from __future__ import annotations

from typing import Literal

import numpy as np

from lamina.errors import Fault, SpecError
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.program import END, LDS, LOAD, STORE, VALU, WAIT, Phase, Program, aligned

TILE = 32
"""Rows and columns of C per workgroup of 64 threads; also the k extent of a loop iteration."""
PAGE = 4096
CODE_LINES = 30
INSTRUCTIONS = 154
INSTRUCTIONS_PER_PASS = 1093

Variant = Literal["shipped", "corrected"]


def gemm(m: int, n: int, k: int, variant: Variant = "shipped") -> Program:
    """C[m, n] = A[m, k] B[k, n] in fp32, each dimension a multiple of 32.

    A workgroup computes a 32 x 32 tile of C: it copies a 32 x 32 tile of A into LDS and reads B from memory.
    ``shipped`` reads rows 0..31 of A in every workgroup, a bug of the kernel; ``corrected`` reads the right rows.

    Raises:
        SpecError: a dimension is not a positive multiple of 32.
    """
    faults = [
        Fault(f"{name} = {size}: expected a positive multiple of {TILE}")
        for name, size in (("m", m), ("n", n), ("k", k))
        if size < 1 or size % TILE
    ]
    if faults:
        raise SpecError("gemm", faults)
    a_pitch, b_pitch = 4 * k, 4 * n
    b = aligned(m * a_pitch, PAGE)
    c = b + aligned(k * b_pitch, PAGE)
    arguments = c + aligned(m * b_pitch, PAGE)
    packet, code = arguments + PAGE, arguments + 2 * PAGE
    a_per_row = TILE * a_pitch if variant == "corrected" else 0
    trips = k // TILE
    return Program(
        name=f"gemm[{m},{n},{k},{variant}]",
        before=(
            Phase(VALU, 40, scalar=30),
            Phase(LOAD, 1, base=arguments, rows=1, lines=1),
            Phase(WAIT, 1),
            Phase(VALU, 33, scalar=15),
        ),
        loop=(
            *(phase for j in range(4) for phase in _copy_of_a(j, a_pitch, a_per_row)),
            *(phase for i in range(TILE // 4) for phase in _products(i, b, b_pitch)),
        ),
        after=(
            *(
                phase
                for i in range(4)
                for phase in (
                    Phase(VALU, 7 if i else 6),
                    Phase(
                        STORE, 1, base=c + i * b_pitch, per_row=TILE * b_pitch, per_column=4 * TILE,
                        rows=8, pitch=4 * b_pitch, lines=2,
                    ),
                )
            ),
            Phase(WAIT, 1),
            Phase(END, 1),
        ),
        rows=m // TILE,
        columns=n // TILE,
        trips=np.full((m // TILE) * (n // TILE), trips, dtype=np.int64),
        bytes=code + PAGE,
        instructions_per_workgroup=INSTRUCTIONS,
        instructions_per_trip=INSTRUCTIONS_PER_PASS,
        registers=76,
        lds_bytes=4096,
        image=(packet, *(code + LINE * i for i in range(CODE_LINES))),
    )  # fmt: skip


def _copy_of_a(j: int, pitch: int, per_row: int) -> tuple[Phase, ...]:
    """Rows j, j + 4, ... of a tile of A into LDS."""
    request = Phase(LOAD, 1, base=j * pitch, per_row=per_row, per_trip=4 * TILE, rows=8, pitch=4 * pitch, lines=2)
    return (Phase(VALU, 9), request, Phase(WAIT, 1, scalar=1), Phase(LDS, 1, scalar=3))


def _products(i: int, b: int, pitch: int) -> tuple[Phase, ...]:
    """Four steps of the inner product. Each of the four rows of B is a separate load, between instructions
    that compute its address, so the page walks of the four rows start one after the other."""
    loads = []
    for row, (vector, scratchpad) in enumerate(((10, 1), (9, 2), (9, 2), (9, 2))):
        loads += [
            Phase(VALU, vector),
            Phase(LDS, scratchpad),
            Phase(
                LOAD, 1, base=b + (4 * i + row) * pitch, per_column=4 * TILE, per_trip=TILE * pitch,
                rows=1, pitch=pitch, lines=2,
            ),
        ]  # fmt: skip
    return (*loads, Phase(WAIT, 2, scalar=2), Phase(VALU, 74, scalar=5))
