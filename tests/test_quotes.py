"""Every measured number in README and docs is the one in its results file."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "quote_results.py"))
PAGES = TOOL["pages"]()
WORDS = 1500
LONG = {"store.md", "counters.md"}  # tables of columns and metrics, made by tools


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_numbers_are_those_of_the_results_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert TOOL["filled"](text) == text, "run: python tools/quote_results.py"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_no_measured_number_stands_without_its_file(page: Path) -> None:
    assert list(TOOL["unquoted"](page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_comments_behind_numbers_are_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    comments = re.findall(r"<!-- \w+: (?:speedup|summary)", text)
    assert len(comments) == len(TOOL["QUOTE"].findall(text))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in LONG], ids=ids)
def test_pages_are_short(page: Path) -> None:
    prose = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(prose.split()) <= WORDS


def test_a_changed_number_is_written_anew() -> None:
    query = "<!-- circulant_recurrent: summary / dense over circulant / lstm 2048 bf16 -->"
    assert TOOL["filled"](f"9.99x{query}") != f"9.99x{query}"
    assert TOOL["filled"](TOOL["filled"](f"9.99x{query}")) == TOOL["filled"](f"9.99x{query}")


@pytest.mark.parametrize("query", ["nothing: summary / a", "hierarchy_vgg16: summary / b", "hierarchy_vgg16: speedup"])
def test_a_number_without_a_source_is_refused(query: str) -> None:
    with pytest.raises(LookupError):
        TOOL["filled"](f"1.0x<!-- {query} -->")


@pytest.mark.parametrize("text", ["is 3.2x as fast", "takes 12 us", "4 times", "900 GB/s"])
def test_a_measured_number_without_a_file_is_found(text: str) -> None:
    assert list(TOOL["unquoted"](text))


@pytest.mark.parametrize("text", ["a 4 x 4 tile", "`3x3`", "batch 128", "```\n3x\n```\n", "16x16x8", "$2x$"])
def test_sizes_and_code_are_no_measurements(text: str) -> None:
    assert not list(TOOL["unquoted"](text))
