"""How findings name rows and write numbers."""

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
    """A time at the unit a person would choose.

    >>> us(3.14159), us(141.2), us(2345.0)
    ('3.1 us', '141 us', '2.35 ms')
    """
    return ms(time_us) if time_us >= 1000 else f"{time_us:.0f} us" if time_us >= 10 else f"{time_us:.1f} us"


def megabytes(count: float) -> str:
    """A number of bytes.

    >>> megabytes(123_456_789), megabytes(4_300_000_000)
    ('123 MB', '4.3 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


LONGEST = 60
"""Characters of a kernel's name that a sentence can bear."""


WRAPPERS = ("Kernel", "Kernel2", "kernel")
"""Kernels that are named by their first template argument."""


def kernel_name(name: str) -> str:
    """What a person calls a kernel: without its return type, namespaces, template and function arguments.

    >>> kernel_name("void cudnn::nchwToNhwcKernel<float, float, float>(cudnn::Params<float>, float const*)")
    'nchwToNhwcKernel'
    """
    plain = re.sub(r"\((anonymous namespace)\)::|<unnamed>::", "", name.removeprefix("void "))
    bare, *arguments = re.split(r"[<(,>]", plain)
    bare = bare.rsplit("::", 1)[-1].strip()
    if bare in WRAPPERS and arguments:
        bare = arguments[0].rsplit("::", 1)[-1].strip()
    return bare if len(bare) <= LONGEST else f"{bare[: LONGEST - 1]}…"
