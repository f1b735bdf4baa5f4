"""Numbers in README and docs, written from the results files that a comment behind each number names.

    4.4x<!-- circulant_layers: speedup; layer=A; phase=step; precision=bf16; timing=graph -->
    1.9x<!-- circulant_recurrent: summary / dense over circulant / lstm 2048 bf16 -->

Before the colon stands what was measured, and on which device where several have files of the same day; the newest
file of that name in benchmarks/results is read. ``speedup`` is
the shortest dense median over the shortest median of ``impl``, or of all others, in the rows that match. ``summary``
is a path into the file's summary: the n-th number of a text with ``#n`` behind it, a percentage with ``%``, the
inverse with ``inverse``.

Every other number that looks measured must stand in ``stated_numbers.toml``, in a phrase of its page, under what it is
instead. So a number without a source is found by ``tests/test_quotes.py``.

Run: python tools/quote_results.py          rewrites the numbers
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BASELINES = ("dense", "library")
GENERATED = ("evidence", "reference", "_build", "simulator-validation.md")
"""Written by tools, each with a test of its own."""
QUOTE = re.compile(
    r"(?P<number>-?\d[\d,]*(?:\.\d+)?)(?P<unit>[^\s\d<|]*|\s?%)<!-- (?P<file>[\w-]+): (?P<query>[^>]+?) -->"
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
UNITS = "percent|us|µs|ms|s|seconds?|min|minutes?|h|hours?|points?|times|[TG]B/s|[TG]FLOP/s|[KMG]i?B|m?J|W|[MG]Hz"
MEASURED = re.compile(
    rf"(?<![\w.,/])(?<![A-Za-z]-)(?:\d[\d,]*(?:\.\d+)?(?: ?%|x(?!\w)| ?(?:{UNITS})(?![\w/]))|\d[\d,]*\.\d+(?!\.?\w))"
)
"""What a measured number looks like: one with a unit, a percentage, a ratio, a decimal. Bytes are sizes of formats."""
REFERENCE = re.compile(
    r"(?i)\b(?:figures?|tables?|sections?|equations?|chapters?|algorithms?|compute capability)\s+\d[\d.]*"
    r"(?:(?:,|,? and|,? or| to)\s+\d[\d.]*)*"
)
"""Numbers of figures and sections, and of an architecture."""
CODE = re.compile(r"(?ms)^(```|:::).*?^\1|^ {4}.*?$|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)]*\)")
STATED = Path(__file__).parent / "stated_numbers.toml"
KINDS = {
    "setting": "a default, an option, what was asked of a run",
    "limit": "a threshold or tolerance that code or a test holds",
    "published": "of a paper, a specification or another program's documentation",
    "computed": "from a formula on the page, or an example of one",
    "version": "of software",
}
"""What a number that looks measured may be instead; ``stated_numbers.toml`` has such phrases by page and kind."""


def pages() -> list[Path]:
    """README and the pages of docs that are written by hand."""
    docs = ROOT / "docs"
    return [
        ROOT / "README.md",
        *(p for p in sorted(docs.rglob("*.md")) if p.relative_to(docs).parts[0] not in GENERATED),
    ]


@cache
def document(name: str) -> dict[str, Any]:
    """The newest results file of this name, ``<what>`` or ``<what>_<device>``.

    Raises:
        LookupError: there is none, or the newest are of several devices and the name has none.
    """
    found: dict[str, list[Path]] = {}
    for path in RESULTS.glob(f"{name}_*.json"):
        claim, device, date = path.stem.rsplit("_", 2)
        if name in (claim, f"{claim}_{device}"):
            found.setdefault(date, []).append(path)
    if not found:
        raise LookupError(f"expected a file benchmarks/results/{name}_<device>_<date>.json")
    path, *others = found[max(found)]
    if others:
        raise LookupError(f"{name}: several devices have results of {max(found)}: write {name}_<device>")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def value(name: str, query: str) -> float:
    """The number that a comment asks for."""
    return speedup(name, query) if query.startswith("speedup") else summary(name, query)


def speedup(name: str, query: str) -> float:
    """Dense time over candidate time, of the rows whose columns have the values of the query."""
    wanted = dict(part.strip().split("=", 1) for part in query.split(";")[1:])
    impl = wanted.pop("impl", None)
    rows = [r for r in document(name)["rows"] if all(str(r.get(column)) == text for column, text in wanted.items())]
    dense = [row["median_us"] for row in rows if row["impl"] in BASELINES]
    others = [row["median_us"] for row in rows if row["impl"] not in BASELINES and impl in (None, row["impl"])]
    if not dense or not others:
        raise LookupError(f"{name}: {query}: expected dense and other rows, got {len(dense)} and {len(others)}")
    return float(min(dense) / min(others))


def summary(name: str, query: str) -> float:
    """The number at a path of the summary."""
    path, _, options = query.partition("#")
    found: Any = document(name)
    for key in path.split(" / "):
        if isinstance(found, dict) and key.strip() not in found:  # files of version 0.1 spell it otherwise
            key = key.replace("speedup", "speed-up")
        try:
            found = found[int(key)] if isinstance(found, list) else found[key.strip()]
        except (KeyError, IndexError, ValueError) as error:
            raise LookupError(f"{name}: {query}: no {key.strip()!r}") from error
    if isinstance(found, dict) and len(found) == 1:
        (found,) = found.values()
    if isinstance(found, str):
        found = NUMBER.findall(found)[int(re.sub(r"\D", "", options) or 0)]
    number = float(found)
    return 1 / number if "inverse" in options else 100 * number if "%" in options else number


def quoted(match: re.Match[str]) -> str:
    """A number and its comment, with the number that the results file holds, in as many digits as were written."""
    digits = len(match["number"].partition(".")[2])
    return f"{value(match['file'], match['query']):,.{digits}f}{match[0].removeprefix(match['number'])}"


def filled(text: str) -> str:
    """A page with every quoted number as its results file has it."""
    return QUOTE.sub(quoted, text)


def stated(page: Path) -> list[str]:
    """Phrases of a page whose numbers are no measurements.

    Raises:
        LookupError: the file has another kind than ``KINDS``.
    """
    kinds = tomllib.loads(STATED.read_text(encoding="utf-8")).get(page.relative_to(ROOT).as_posix(), {})
    if unknown := set(kinds) - set(KINDS):
        raise LookupError(f"{STATED.name}: {page.name}: expected kinds of {', '.join(KINDS)}, got {', '.join(unknown)}")
    return [phrase for phrases in kinds.values() for phrase in phrases]


def flowing(phrase: str) -> re.Pattern[str]:
    """A phrase, with any white space where it has some: lines of a page end anywhere."""
    return re.compile(r"\s+".join(map(re.escape, phrase.split())))


def unquoted(text: str, stated: Iterable[str] = ()) -> Iterator[str]:
    """Numbers outside of code that look measured and name no results file, but for those in ``stated`` phrases."""
    for phrase in stated:
        text = flowing(phrase).sub("", text)
    prose = REFERENCE.sub("", CODE.sub("", QUOTE.sub("", text)))
    yield from (match[0] for match in MEASURED.finditer(prose))


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
