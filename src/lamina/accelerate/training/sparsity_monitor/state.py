"""The two states of the monitor."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Whether maps are monitored at periods of their own or sleep together (Spartan, figure 6.4b)."""

    ACTIVE = "active"
    HIBERNATE = "hibernate"
