"""Colours, the same in every figure. The phases' differ for colour-blind eyes and in grey print, too.

The phase colours follow Paul Tol's high-contrast (light) and medium-contrast (dark) schemes,
SRON/EPS/TN/09-002, with a yellow dark enough to stand out from white.
"""

from __future__ import annotations

from collections.abc import Mapping

PHASES = ("forward", "backward_data", "backward_weight")
"""In the order of a training step, which is the order they are stacked in."""

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
}


def phase_colour(phase: str) -> str:
    """The name of a phase's colour; anything that is no phase of a layer looks like a whole step."""
    return phase if phase in PHASES else "step"
