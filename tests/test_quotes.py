"""Every measured number in README and docs is the one in its results file."""

import json
import re
import runpy
import tomllib
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
    text = page.read_text(encoding="utf-8")
    advice = "name its results file in a comment behind it, or say in tools/stated_numbers.toml what else it is"
    assert list(TOOL["unquoted"](text, TOOL["stated"](page))) == [], advice


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_stated_phrases_stand_once_on_their_page_and_are_needed(page: Path) -> None:
    text, phrases = page.read_text(encoding="utf-8"), TOOL["stated"](page)
    assert {phrase: len(TOOL["flowing"](phrase).findall(text)) for phrase in phrases} == dict.fromkeys(phrases, 1)
    for phrase in phrases:
        assert list(TOOL["unquoted"](text, [other for other in phrases if other != phrase])), f"{phrase}: not needed"


def test_no_converted_network_of_the_readme_is_slower_than_dense() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    steps = [quote for quote in TOOL["QUOTE"].finditer(readme) if quote["file"].startswith("whole_steps")]
    assert len(steps) > 100
    slow = [quote[0] for quote in steps if TOOL["value"](quote["file"], quote["query"]) < 0.98]
    assert not slow, "what docs/capabilities/graphs.md says of them is no longer true"


def test_stated_pages_exist() -> None:
    assert set(tomllib.loads(TOOL["STATED"].read_text(encoding="utf-8"))) <= set(map(ids, PAGES))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_comments_behind_numbers_are_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    comments = re.findall(r"<!-- [\w-]+: (?:speedup|summary)", text)
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


@pytest.mark.parametrize(
    "text",
    ["is 3.2x as fast", "takes 12 us", "4 times", "900 GB/s", "in 2-3 seconds", "loses 0.4 points", "1,024 MiB",
     "at 0.98", "| conv1 | 41.4 |", "11 % of the cells", "90.5% of it", "is 3x.", "7 ms, or less", "uses 300 W"],
)  # fmt: skip
def test_a_measured_number_without_a_file_is_found(text: str) -> None:
    assert list(TOOL["unquoted"](text))


@pytest.mark.parametrize(
    "text",
    ["a 4 x 4 tile", "`3x3`", "batch 128", "```\n3x\n```\n", "16x16x8", "$2x$", "figures 6.14, 6.15 and 6.20 to 6.26",
     "compute capability 9.0", "[page](https://example.org/3.2x)", "64-byte lines", "fp16", "F(2,3)",
     "2.4x<!-- circulant_layers: summary / speedup_over_best_dense / fc bf16 --> as fast"],
)  # fmt: skip
def test_sizes_references_code_and_quotes_are_no_measurements(text: str) -> None:
    assert not list(TOOL["unquoted"](text))


def test_one_phrase_excuses_its_own_numbers_only() -> None:
    text = "It waits 30 s at most,\nand took 12 s."
    assert list(TOOL["unquoted"](text, ["waits 30 s at most"])) == ["12 s"]


def test_results_of_one_day_and_several_devices_need_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device, value in (("cpu", 1.5), ("nvidia-h200", 2.5)):
        (tmp_path / f"some_{device}_2026-01-02.json").write_text(json.dumps({"summary": {"a": value}}))
    monkeypatch.setitem(TOOL["document"].__wrapped__.__globals__, "RESULTS", tmp_path)
    TOOL["document"].cache_clear()
    assert TOOL["filled"]("9.9x<!-- some_nvidia-h200: summary / a -->").startswith("2.5x")
    with pytest.raises(LookupError, match="several devices"):
        TOOL["filled"]("9.9x<!-- some: summary / a -->")
