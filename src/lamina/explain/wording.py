"""Formatting of names and values in findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lamina.record import LayerRun
from lamina.record.wording import listed


def name(row: LayerRun) -> str:
    return f"{row.layer} {row.phase}"


def names(rows: Sequence[LayerRun]) -> str:
    return listed([name(row) for row in rows])


def phases(rows: Sequence[LayerRun]) -> str:
    return "1 phase is" if len(rows) == 1 else f"{len(rows)} phases are"


def percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


def ms(us: float) -> str:
    return f"{us / 1e3:,.2f} ms"


def us(time_us: float) -> str:
    """A time in microseconds or milliseconds.

    >>> us(3.14159), us(141.2), us(2345.0)
    ('3.1 us', '141 us', '2.35 ms')
    """
    return ms(time_us) if time_us >= 1000 else f"{time_us:.0f} us" if time_us >= 10 else f"{time_us:.1f} us"


def megabytes(count: float) -> str:
    """A byte count.

    >>> megabytes(123_456_789), megabytes(4_300_000_000)
    ('123 MB', '4.3 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


LONGEST = 60
"""Maximum number of characters of a kernel name in a sentence."""


WRAPPERS = ("Kernel", "Kernel2", "kernel")
"""Generic kernel names: the first template argument identifies the kernel."""


def kernel_name(name: str) -> str:
    """A kernel's short name: without return type, namespaces, template and function arguments.

    >>> kernel_name("void cudnn::nchwToNhwcKernel<float, float, float>(cudnn::Params<float>, float const*)")
    'nchwToNhwcKernel'
    """
    plain = re.sub(r"\((anonymous namespace)\)::|<unnamed>::", "", name.removeprefix("void "))
    bare, *arguments = re.split(r"[<(,>]", plain)
    bare = bare.rsplit("::", 1)[-1].strip()
    if bare in WRAPPERS and arguments:
        bare = arguments[0].rsplit("::", 1)[-1].strip()
    return bare if len(bare) <= LONGEST else f"{bare[: LONGEST - 1]}…"
