"""Colours, the same in every figure. The phases' differ for colour-blind eyes and in grey print, too.

The phase colours follow Paul Tol's high-contrast (light) and medium-contrast (dark) schemes,
SRON/EPS/TN/09-002, with a yellow dark enough to stand out from white.
"""

from __future__ import annotations

from collections.abc import Mapping

PHASES = ("forward", "backward_data", "backward_weight")
"""In the order of a training step, which is the order they are stacked in."""

SERIES = tuple(f"series{number}" for number in range(1, 9))
"""Names of the colours of things that have no colour of their own; ``rest`` is for what is left over."""
_LIGHT = ("#004488", "#c25a1c", "#157f6b", "#bb5566", "#7a7a00", "#7a4fa3", "#3a8dc4", "#8a5a3c")
_DARK = ("#6699cc", "#ee8866", "#44bb99", "#ffaabb", "#cccc44", "#c3a3e6", "#99ddff", "#c99b76")

LIGHT: Mapping[str, str] = {
    "forward": "#004488",
    "backward_data": "#c08a10",
    "backward_weight": "#bb5566",
    "step": "#555f6b",
    "paper": "#ffffff",
    "raised": "#f6f7f9",
    "ink": "#16202b",
    "muted": "#55616e",
    "line": "#dfe3e8",
    "accent": "#004488",
    "alarm": "#a3142a",
    "heat": "#004488",
    **dict(zip(SERIES, _LIGHT, strict=True)),
    "rest": "#7d8792",
}

DARK: Mapping[str, str] = {
    "forward": "#6699cc",
    "backward_data": "#eecc66",
    "backward_weight": "#ee99aa",
    "step": "#a9b4c0",
    "paper": "#11161c",
    "raised": "#1a2129",
    "ink": "#e8ecf1",
    "muted": "#a2aebb",
    "line": "#2e3842",
    "accent": "#8ab8e6",
    "alarm": "#ff8b95",
    "heat": "#8ab8e6",
    **dict(zip(SERIES, _DARK, strict=True)),
    "rest": "#75818d",
}


def phase_colour(phase: str) -> str:
    """The name of a phase's colour; anything that is no phase of a layer looks like a whole step."""
    return phase if phase in PHASES else "step"
