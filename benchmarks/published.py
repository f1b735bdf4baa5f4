"""Statements of papers about tables and figures, checked against benchmark results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lamina.spec.published import entry

Told = tuple[str, bool]
"""Our result as text, and whether it agrees with the statement."""
Rule = Callable[[Sequence[Mapping[str, Any]]], Told]


def statements(
    ids: Iterable[str], rules: Mapping[str, Rule], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each statement of the entries, checked against rows; ``holds`` is None if they are not sufficient."""
    found = []
    for id in ids:
        for it in entry(id).statements:
            rule = rules[it.check]
            try:
                ours, holds = rule(rows)
            except (LookupError, ValueError, TypeError):  # required rows or values are missing
                ours, holds = "cannot be determined from these rows", None
            found.append({"entry": id, "about": it.about, "says": it.says, "ours": ours, "holds": holds})
    return found


def share(of: str, holds: Iterable[bool]) -> Told:
    """The number of cases in which it holds, and whether in all.

    Raises:
        ValueError: there are none.
    """
    cases = list(holds)
    if not cases:
        raise ValueError(f"expected {of}, got none")
    return f"{sum(cases)} of {len(cases)} {of}", all(cases)
