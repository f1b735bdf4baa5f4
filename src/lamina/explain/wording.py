"""Formatting of names and values in findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lamina.explain.patterns import patterns, repeated
from lamina.record import LayerRun
from lamina.record.wording import NAMED


def name(row: LayerRun) -> str:
    return f"{row.layer} {row.phase}"


def names(rows: Sequence[LayerRun]) -> str:
    """Some phases, layers that repeat once, and how many more there are."""
    phases: dict[str, list[str]] = {}
    for row in rows:
        phases.setdefault(row.phase, []).append(row.layer)
    order = {name(row): place for place, row in reversed(list(enumerate(rows)))}
    groups = [
        (order[f"{layers[0]} {phase}"], pattern, phase, layers)
        for phase, of in phases.items()
        for pattern, layers in patterns(of).items()
    ]
    shown = sorted(groups)[:NAMED]
    said = [f"{pattern} {phase}" + (f" ({len(of)} layers)" if len(of) > 1 else "") for _, pattern, phase, of in shown]
    return _and_more(said, len(order) - sum(len(of) for *_, of in shown))


def layer_names(layers: Iterable[str]) -> str:
    """Some layers, those that repeat once, and how many more there are."""
    groups = patterns(layers)
    shown = list(groups.items())[:NAMED]
    left = sum(map(len, groups.values())) - sum(len(of) for _, of in shown)
    return _and_more([repeated(pattern, of) for pattern, of in shown], left)


def _and_more(shown: Sequence[str], more: int) -> str:
    return ", ".join(shown) + (f" and {more} more" if more else "")


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
