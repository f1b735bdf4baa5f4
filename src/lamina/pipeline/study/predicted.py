"""The time of a plan, predicted from its parts, each timed alone."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.pipeline.study.parts import saved_us
from lamina.pipeline.study.whole import Compared
from lamina.record.study import Measured


def predicted_us(compared: Compared, base: Measured, wholes: Sequence[Measured]) -> float | None:
    """The plan's step in microseconds: the dense one in its mode, less what its parts save.

    ``None`` if no part could be timed alone: that the plan takes as long as the dense network is no prediction.

    Args:
        compared: the plan, with the parts of its step and of the dense one.
        base: the dense network at the settings of the plan, but for the mode.
        wholes: the network at uniform settings.
    """
    together_us, saved = saved_us(*compared.parts)
    if not together_us:
        return None
    settings = compared.plan.settings
    dense = next((one for one in wholes if one.settings == settings and one.timing is not None), base)
    return dense.time_us - scale(dense, together_us) * saved


def scale(dense: Measured, together_us: float) -> float:
    """What a microsecond saved in a part alone saves in the whole network: all parts take at most its time."""
    return min(1.0, dense.time_us / together_us) if together_us else 1.0
