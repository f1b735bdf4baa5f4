"""The house in order: the lock, the documentation, the published results, and what no file may say."""

import json
import os
import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from benchmarks.results import Results

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "constraints.txt").read_text(encoding="utf-8")
TORCH = runpy.run_path(str(ROOT / "tools" / "install_torch.py"))
HEADINGS = (["Idea", "Use", "When it pays", "Evidence"], ["Idea", "Use", "Limits", "Evidence"])  # methods, tools
UNSAID = {  # written so that no pattern finds itself
    "a registry's host": r"pypi[.]org|pythonhoste[d]|download[.]pytorch|pypi[.]nvidia|deb[.]debian|npmj[s]",
    "a path of one machine": r"(?<![\w.-])/(work|root|opt/(pypi|wheels))/[\w.]",
    "an unanchored to-do": r"\b(TOD[O]|FIXM[E])\b",
    "who or what wrote it": r"(?i)\bclaud[e]\b|\banthropi[c]\b|\bco-authored-b[y]\b|\bAI (agent|assistan[t])",
}


def files(*suffixes: str) -> Iterator[Path]:
    """The project's own text files, as a fresh checkout has them."""
    made = {"demo", "dist", "_build", "generated", "__pycache__"}
    for folder, folders, names in os.walk(ROOT):  # which does not go into what is left out, such as .venv
        folders[:] = [each for each in sorted(folders) if each == ".ci" or not (each.startswith(".") or each in made)]
        yield from (path for name in sorted(names) if (path := Path(folder, name)).suffix in suffixes)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def required(*extras: str) -> set[str]:
    optional = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in optional[extra])]
    return {re.split(r"[\[><=!~; ]", line)[0] for line in lines} - {"lamina"}


def test_lock_pins_what_is_installed_for_tests_and_docs() -> None:
    pinned = {name for name, _ in TORCH["PIN"].findall(LOCK)}
    unpinned = {"nvidia-cuda-nvrtc"}  # torch for CUDA pins its own
    assert required("kernels", "sim", "figures", "parquet", "postgres", "dev", "docs") - pinned == unpinned


def test_lock_serves_every_machine() -> None:
    assert {"triton==3.6.0", "numpy==2.3.5"} <= set(LOCK.split())
    assert not re.search(r"\+|://|^nvidia-(?!ml-py)", LOCK, re.MULTILINE)


def test_torch_is_not_needed_to_build() -> None:
    assert not any(line.startswith("torch") for line in PROJECT["build-system"]["requires"])


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ({"torch": "2.13.0+cpu"}, "rich==15.0.0\ntriton==3.6.0\ntorch==2.13.0+cpu\n"),
        ({"torch": "2.13.0+cu130", "triton": None}, "rich==15.0.0\ntorch==2.13.0+cu130\n"),
        ({"torch": "2.11.0", "triton": "3.6.1"}, "rich==15.0.0\ntorch==2.11.0\ntriton==3.6.1\n"),
    ],
)
def test_constraints_keep_the_torch_that_is_there(keep: dict[str, str | None], expected: str) -> None:
    assert TORCH["constraints"]("rich==15.0.0\ntorch==2.13.0\ntriton==3.6.0\n", keep) == expected


def test_torch_comes_from_named_sources_only() -> None:
    assert [options[0] for options in TORCH["sources"]({})] == ["--no-index"]
    asked = list(TORCH["sources"]({"TORCH_INDEX": "file:///wheels", "TORCH_FROM_PYPI": "1"}))
    assert [options[:1] for options in asked] == [["--no-index"], ["--index-url"], []]
    assert asked[1][1] == "file:///wheels"


def test_poisoned_memory_is_lamina_s_own(poisoned_empty: None) -> None:
    scope: dict[str, Any] = {"__name__": "lamina.somewhere", "torch": torch}
    exec("a = torch.empty(3); b = a.new_empty(2); c = torch.empty_like(a, dtype=torch.int64)", scope)
    assert scope["a"].isnan().all()
    assert scope["b"].isnan().all()
    assert scope["c"].dtype == torch.int64
    assert torch.empty(3).zero_().sum() == 0


def unsaid_in(text: str) -> list[str]:
    return [f"{what}: {found[0]}" for what, pattern in UNSAID.items() if (found := re.search(pattern, text))]


def test_no_file_says_what_it_should_not() -> None:
    kinds = (".py", ".md", ".toml", ".txt", ".json", ".html", ".css", ".js", ".cu", ".ini", ".dnnmark", "")
    found = {str(path.relative_to(ROOT)): unsaid_in(text_of(path)) for path in files(*kinds)}
    assert {path: faults for path, faults in found.items() if faults} == {}


@pytest.mark.parametrize("text", ["py" + "pi.org/", "see /wo" + "rk/x", "# TO" + "DO: later", "Clau" + "de"])
def test_what_should_not_be_said_is_found(text: str) -> None:
    assert unsaid_in(text)


def orphans(docs: Path) -> list[str]:
    """Pages that docs/index.md does not link to."""
    targets = re.findall(r"\]\(([^)#]+)", text_of(docs / "index.md"))
    linked = {(docs / target).resolve() for target in ["index.md", *targets]}
    pages = [path for path in docs.rglob("*.md") if not {"_build", "generated"} & {*path.parts}]
    return sorted(str(page.relative_to(docs)) for page in pages if page.resolve() not in linked)


def test_index_links_every_page() -> None:
    generated = {"reference/cli.md", "reference/age.md"}
    assert set(orphans(ROOT / "docs")) - generated == set()


def test_an_orphan_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("[one](one.md)")
    (tmp_path / "one.md").touch()
    (tmp_path / "two.md").touch()
    assert orphans(tmp_path) == ["two.md"]


def test_relative_links_lead_somewhere() -> None:
    links = [(page, link) for page in files(".md") for link in re.findall(r"\]\(([^)#\s]+)", text_of(page))]
    local = [(page, link) for page, link in links if not re.match(r"[a-z]+:", link)]
    assert [f"{page.name}: {link}" for page, link in local if not (page.parent / link).exists()] == []
    docs = ROOT / "docs"
    outside = [
        (page, link) for page, link in local
        if page.is_relative_to(docs) and not (page.parent / link).resolve().is_relative_to(docs)
    ]  # fmt: skip
    assert outside == [], "Sphinx knows no pages outside docs"


def capability_headings(text: str) -> list[str]:
    known = {heading for headings in HEADINGS for heading in headings}
    return [heading for heading in re.findall(r"^## (.+?)\s*$", text, re.MULTILINE) if heading in known]


def test_pytest_looks_into_every_folder_of_tests(pytestconfig: pytest.Config) -> None:
    folders = [path for path in (ROOT / "tests").rglob("*") if path.is_dir()]
    passed_over = pytestconfig.getini("norecursedirs")
    assert ROOT / "tests" / "build" in folders
    assert not [path for path in folders if any(path.match(pattern) for pattern in passed_over)]


def test_capability_pages_have_one_shape() -> None:
    pages = sorted((ROOT / "docs" / "capabilities").glob("*.md"))
    found = {page.name: capability_headings(text_of(page)) for page in pages}
    assert {name: headings for name, headings in found.items() if headings not in HEADINGS} == {}


def test_a_misplaced_heading_is_found() -> None:
    assert capability_headings("# Circulant\n## Use\n## Idea\n## More\n") == ["Use", "Idea"]


def test_changelog_is_kept() -> None:
    changelog = text_of(ROOT / "CHANGELOG.md")
    releases = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    kinds = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert releases[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", release) for release in releases[1:])
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def check_results(name: str, document: dict[str, Any]) -> None:
    results = Results.model_validate(document)
    expected = rf"[\w.-]+_[\w.-]+_{results.provenance.date[:10]}\.json"
    assert re.fullmatch(expected, name), f"expected a file named <what>_<gpu>_<date>.json, got {name}"


RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_file_can_be_recomputed(path: Path) -> None:
    check_results(path.name, json.loads(text_of(path)))


FAULTLESS = """{
  "claim": "circulant",
  "provenance": {"device": "NVIDIA H200", "driver": "580.1", "versions": {"torch": "2.11.0"},
                 "commit": "0123abc", "date": "2026-01-31", "command": "make bench-gpu CLAIM=circulant"},
  "rows": [{"workload": "vgg16", "layer": "conv3_2", "phase": "forward", "precision": "bf16", "batch": 16,
            "layout": "nchw", "impl": "circulant[block_size=64]", "timing": "cupti", "l2": "cold",
            "median_us": 2.0, "q1_us": 1.5, "q3_us": 2.5, "n": 30, "rel_error": 1e-3, "another": "column"}]
}"""


@pytest.mark.parametrize(
    ("name", "row", "provenance"),
    [
        ("circulant_h200_2026-01-31.json", {"phase": "both"}, {}),
        ("circulant_h200_2026-01-31.json", {"q1_us": 2.1}, {}),
        ("circulant_h200_2026-01-31.json", {"median_us": float("nan")}, {}),
        ("circulant_h200_2026-01-31.json", {"rel_error": None}, {}),
        ("circulant_h200_2026-01-31.json", {"unchecked": "random"}, {}),
        ("circulant_h200_2026-01-31.json", {}, {"commit": ""}),
        ("circulant_h200_2026-02-01.json", {}, {}),
        ("circulant.json", {}, {}),
    ],
)
def test_a_faulty_results_file_is_found(name: str, row: dict[str, Any], provenance: dict[str, Any]) -> None:
    check_results("circulant_h200_2026-01-31.json", json.loads(FAULTLESS))
    document = json.loads(FAULTLESS)
    document["rows"][0] |= row
    document["provenance"] |= provenance
    with pytest.raises((ValidationError, AssertionError)):
        check_results(name, document)
