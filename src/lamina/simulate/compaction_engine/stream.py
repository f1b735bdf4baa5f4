"""The output of the engine: lines of non-zero values with their rows; and the inverse conversion."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.simulate.compaction_engine.config import MOST_ROWS, VALUES_PER_LINE, Engine

Mask = NDArray[np.bool_]
Values = NDArray[np.float32]
NONE = MOST_ROWS
"""The row of a padding entry."""


@dataclass(frozen=True)
class Stream:
    """The delivered lines of a matrix, column after column.

    ``values`` and ``rows``: [lines, entries per line]; ``last``: [lines], the end-of-column bit. ``shape`` is
    the matrix's.
    """

    shape: tuple[int, int]
    values: NDArray[np.float16] | NDArray[np.float32] = field(repr=False)
    rows: NDArray[np.uint32] = field(repr=False)
    last: Mask = field(repr=False)

    @property
    def packed(self) -> NDArray[np.uint32]:
        """fp16 entries as 32-bit words: the value in the lower, the row in the upper 16 bits.

        Raises:
            UsageError: the stream is fp32.
        """
        if self.values.dtype != np.float16:
            raise UsageError("packed: expected a stream of fp16, got fp32, whose entries have two words")
        return self.rows << np.uint32(16) | self.values.view(np.uint16)


def kept(mask: Mask, engine: Engine) -> Mask:
    """The delivered values: [rows, columns] -> [columns, rows padded to whole lines].

    All values without compaction; otherwise blocks with a non-zero.

    Raises:
        UsageError: the mask does not have two axes, is empty, or is not boolean.
    """
    if mask.ndim != 2 or not mask.size or mask.dtype != np.bool_:
        raise UsageError(f"expected a boolean mask [k, columns], got {mask.dtype} {list(mask.shape)}")
    rows, columns = mask.shape
    padded = np.zeros((columns, -(-rows // VALUES_PER_LINE) * VALUES_PER_LINE), dtype=np.bool_)
    padded[:, :rows] = mask.T if engine.compaction else True
    if engine.compaction and engine.block > 1:
        blocks = padded.reshape(columns, -1, engine.block).any(axis=2)
        padded = np.repeat(blocks, engine.block, axis=1)
    return padded


def encode(matrix: Values, engine: Engine) -> Stream:
    """The stream of a matrix [k, columns]; a column of zeros is one line without entries.

    Values are converted to fp16 first, so that those that underflow to zero are dropped.

    Raises:
        UsageError: the matrix does not have two axes, is empty, has a NaN, or has too many rows.
    """
    if matrix.ndim != 2 or not matrix.size or matrix.dtype != np.float32:
        raise UsageError(f"expected a matrix [k, columns] of fp32, got {matrix.dtype} {list(matrix.shape)}")
    if np.isnan(matrix).any():
        raise UsageError("expected a matrix without NaN")
    rows, columns = matrix.shape
    if rows > MOST_ROWS:
        raise UsageError(f"expected at most {MOST_ROWS} rows, the maximum of 16-bit indices, got {rows}")
    with np.errstate(over="ignore"):
        narrow = matrix.astype(np.float16) if engine.narrow else matrix
    mask = kept(narrow != 0, engine)
    padded = np.zeros(mask.shape, dtype=narrow.dtype)
    padded[:, :rows] = narrow.T
    per_line = engine.entries_per_line
    lines = np.maximum(1, -(-mask.sum(axis=1) // per_line))
    first = np.cumsum(lines) - lines
    column, row = np.nonzero(mask)
    place = np.cumsum(mask, axis=1)[column, row] - 1
    values = np.zeros((int(lines.sum()), per_line), dtype=narrow.dtype)
    indices = np.full(values.shape, NONE, dtype=np.uint32)
    line, entry = first[column] + place // per_line, place % per_line
    values[line, entry] = padded[column, row]
    indices[line, entry] = row
    last = np.zeros(len(values), dtype=np.bool_)
    last[first + lines - 1] = True
    return Stream((rows, columns), values, indices, last)


def decode(stream: Stream) -> Values:
    """The matrix of a stream, from its lines, rows and end bits."""
    rows, columns = stream.shape
    column: NDArray[np.int64] = np.cumsum(stream.last) - stream.last
    matrix = np.zeros((columns, -(-rows // VALUES_PER_LINE) * VALUES_PER_LINE), dtype=np.float32)
    line, entry = np.nonzero(stream.rows != NONE)
    matrix[column[line], stream.rows[line, entry]] = stream.values[line, entry]
    return np.ascontiguousarray(matrix[:, :rows].T)


@dataclass(frozen=True)
class Layout:
    """The source lines of the delivered lines of each column, which the timing model needs.

    ``below``: [columns, lines + 1], values kept in the lines before one. Of each delivered line, from
    ``starts[column]``: ``last`` is the line of memory with its last value, ``scan`` the one that shows whether more
    follow.
    """

    rows: int
    per_line: int
    below: NDArray[np.int64] = field(repr=False)
    delivered: NDArray[np.int64] = field(repr=False)
    starts: NDArray[np.int64] = field(repr=False)
    last: NDArray[np.int64] = field(repr=False)
    scan: NDArray[np.int64] = field(repr=False)

    @property
    def columns(self) -> int:
        return len(self.delivered)

    @property
    def lines(self) -> int:
        """Lines of memory per column."""
        return int(self.below.shape[1]) - 1


def layout(mask: Mask, engine: Engine) -> Layout:
    """The layout of a mask [k, columns]; see ``kept`` for errors."""
    values = kept(mask, engine)
    columns, per_line = len(values), engine.entries_per_line
    counts = values.reshape(columns, -1, VALUES_PER_LINE).sum(axis=2, dtype=np.int64)
    below = np.zeros((columns, counts.shape[1] + 1), dtype=np.int64)
    np.cumsum(counts, axis=1, out=below[:, 1:])
    total, lines = below[:, -1], counts.shape[1]
    delivered = np.maximum(1, -(-total // per_line))
    starts = np.cumsum(delivered) - delivered
    column = np.repeat(np.arange(columns), delivered)
    end = (np.arange(len(column)) - starts[column] + 1) * per_line
    span = int(total.max()) + per_line + 1
    flat = (below[:, 1:] + (np.arange(columns) * span)[:, None]).ravel()

    def line_of(value: NDArray[np.int64]) -> NDArray[np.int64]:
        """The line of memory with the n-th kept value; beyond the last line if there is none."""
        within = np.minimum(value, total[column])
        found: NDArray[np.int64] = np.searchsorted(flat, within + column * span, side="right") - column * lines
        return found

    last = line_of(np.minimum(end, total[column]) - 1)
    last[total[column] == 0] = -1
    scan = last.copy() if not engine.compaction else np.minimum(line_of(end), lines - 1)
    return Layout(mask.shape[0], per_line, below, delivered, starts, last, scan)
