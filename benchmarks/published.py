"""What a paper says of a table or figure, beside what a benchmark found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lamina.spec.published import entry

Told = tuple[str, bool]
"""What was found, in words, and whether it is what the paper says."""
Rule = Callable[[Sequence[Mapping[str, Any]]], Told]


def statements(
    ids: Iterable[str], rules: Mapping[str, Rule], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each statement of those entries, looked for in rows; ``holds`` is None where these cannot tell."""
    found = []
    for id in ids:
        for it in entry(id).statements:
            rule = rules[it.check]
            try:
                ours, holds = rule(rows)
            except (LookupError, ValueError, TypeError):  # rows that it needs, or numbers in them, are missing
                ours, holds = "cannot be told from these rows", None
            found.append({"entry": id, "about": it.about, "says": it.says, "ours": ours, "holds": holds})
    return found


def share(of: str, holds: Iterable[bool]) -> Told:
    """In how many of some cases, and whether in all.

    Raises:
        ValueError: there are none.
    """
    cases = list(holds)
    if not cases:
        raise ValueError(f"expected {of}, got none")
    return f"{sum(cases)} of {len(cases)} {of}", all(cases)
