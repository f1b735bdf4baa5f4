"""Numbers in README and docs, written from the results files that a comment behind each number names.

    4.4x<!-- circulant_layers: speedup; layer=A; phase=step; precision=bf16; timing=graph -->
    1.9x<!-- circulant_recurrent: summary / dense over circulant / lstm 2048 bf16 -->

Before the colon stands what was measured; the newest file of that name in benchmarks/results is read. ``speedup`` is
the shortest dense median over the shortest median of ``impl``, or of all others, in the rows that match. ``summary``
is a path into the file's summary: the n-th number of a text with ``#n`` behind it, a percentage with ``%``, the
inverse with ``inverse``.

Run: python tools/quote_results.py          rewrites the numbers
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BASELINES = ("dense", "library")
GENERATED = ("evidence", "reference", "_build")
QUOTE = re.compile(
    r"(?P<number>-?\d[\d,]*(?:\.\d+)?)(?P<unit>[^\s\d<|]*|\s?%)<!-- (?P<file>\w+): (?P<query>[^>]+?) -->"
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
MEASURED = re.compile(r"(?<![\w.])\d[\d,.]*(?:x\b| ?(?:us|ms|µs)\b| times\b| GB/s| TFLOP/s)(?!<!--)")
"""What a measured number looks like, if no comment follows it."""


def pages() -> list[Path]:
    """README and the pages of docs that are written by hand."""
    docs = ROOT / "docs"
    return [
        ROOT / "README.md",
        *(p for p in sorted(docs.rglob("*.md")) if p.relative_to(docs).parts[0] not in GENERATED),
    ]


@cache
def document(name: str) -> dict[str, Any]:
    """The newest results file of this name.

    Raises:
        LookupError: if there is none.
    """
    found = [path for path in RESULTS.glob(f"{name}_*.json") if path.stem.rsplit("_", 2)[0] == name]
    if not found:
        raise LookupError(f"expected a file benchmarks/results/{name}_<device>_<date>.json")
    path = max(found, key=lambda path: path.stem.rsplit("_", 1)[1])
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


def unquoted(text: str) -> Iterator[str]:
    """Numbers outside of code that look measured and name no results file."""
    prose = re.sub(r"(?ms)^(```|:::).*?^\1|^ {4}.*?$|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)]*\)", "", text)
    yield from (match[0] for match in MEASURED.finditer(prose))


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
