"""A long list of what-ifs made short: equal layers become one line, and the slowest lines are shown."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from lamina.record import LayerRun, WhatIf
from lamina.report.columns import WHOLE
from lamina.report.folding import SLOWEST, folded_names, together


@dataclass(frozen=True)
class ShortWhatIfs:
    """What is shown of ``total`` what-ifs.

    Attributes:
        lines: changes of whole steps, then the layers whose changed phases take the most time.
        refused: what could not be executed.
        folded: how many what-ifs are folded into ``lines``.
        hidden: how many are in neither.
    """

    lines: tuple[WhatIf, ...]
    refused: tuple[WhatIf, ...]
    folded: int
    hidden: int


def shorten_what_ifs(found: Sequence[WhatIf], rows: Sequence[LayerRun], most: int = SLOWEST) -> ShortWhatIfs:
    """Whole steps and the ``most`` slowest lines of layers.

    Args:
        found: the what-ifs of a run.
        rows: the layers of the run, of which equal ones are folded; without them, none.
    """
    names = folded_names([row for row in rows if row.phase != WHOLE])
    network = {row.layer for row in rows if row.phase == WHOLE}
    groups: dict[Hashable, list[WhatIf]] = {}
    for one in found:
        if one.after is not None:
            name = names.get(one.layer, one.layer)
            key = (one.change, one.detail, name, one.phase, one.precision, one.batch, one.predicted_us is None)
            groups.setdefault(key, []).append(one)
    lines = [_sum(names.get(members[0].layer, members[0].layer), members) for members in groups.values()]
    whole = [line for line, _ in lines if line.layer in network]
    layers = sorted((it for it in lines if it[0].layer not in network), key=lambda it: -it[0].before.median_us)
    shown = layers[:most]
    return ShortWhatIfs(
        (*whole, *(line for line, _ in shown)),
        tuple(one for one in found if one.after is None),
        sum(members for _, members in shown if members > 1),
        sum(members for _, members in layers[most:]),
    )


def _sum(name: str, members: Sequence[WhatIf]) -> tuple[WhatIf, int]:
    """One what-if for equal layers, whose times are sums, and the number of these."""
    if len(members) == 1:
        return members[0], 1
    errors = [one.rel_error for one in members if one.rel_error is not None]
    predicted = [one.predicted_us for one in members if one.predicted_us is not None]
    return replace(
        members[0],
        layer=name,
        before=together([one.before for one in members]),
        after=together([one.after for one in members if one.after]),
        predicted_us=sum(predicted) if predicted else None,
        rel_error=max(errors, default=None),
    ), len(members)
