"""Public docstrings, help texts, and pages are written in the field's words: docs/glossary.md has them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "lamina"
GENERATED = ("evidence", "reference", "_build")
HELP = ("help", "short_help", "epilog")

HOME_MADE = {
    r"\btap(?:e|es|ed)\b": "launch cache, launch plan",
    r"\bbirthplaces?\b": "provenance",
    r"\blaunched one by one\b": "in eager mode",
    r"\bwhere the host decides\b": "CPU-bound",
    r"\bwhat the (?:host|GPU|library) takes\b": "launch overhead, time",
    r"\btakes? the host\b": "launch overhead",
    r"\bliving (?:channels|rows)\b|\bchannels (?:that )?live\b": "active channels",
    r"(?:float16|fp16|bf16) halves\b|\bon \*?halves\b|\bhalves under\b": "split-fp16, hi and lo",
    r"\bof (?:the|its|their) (?:roof|compute roof|copy roof)\b|\bof roof\b|\bmemory roof\b": "roofline, measured peak",
    r"\bby turns\b|\bin turns\b": "interleaved",
    r"\bbytes bind\b|\bbound by (?:its |their )?bytes\b|\b(?:memory|arithmetic) binds\b": "memory-bound, compute-bound",
    r"\blet the tensor cores work\b": "enable tensor cores",
    r"\btake the host out of the way\b": "reduce launch overhead",
    r"\b(?:are|is|be|too) dear\b|\bdearer\b": "expensive",
    r"\bwho(?:so)?ever\b": "name the subject",
    r"\bremarks?\b": "warning, note",
    r"\bspeed-ups?\b": "speedup",
    r"\bwidened? in registers\b|\bwidening\b": "dequantized",
    r"\bweights in fewer bits\b|\bnumbers in fewer bits\b": "weight-only quantization",
    r"\bcan do without\b|\bdoes? without the\b": "prune",
    r"\bnobody reads\b": "dead output channels",
    r"\bfound a home\b|\bhas no home\b|\bbrought home\b": "attributed",
    r"\bwhat (?:it|they|kernels|layers) (?:is|are) told\b|\bis told to\b": "config, message",
    r"\bwritten out in every step\b": "materialized",
    r"\bwindows are \(\d": "stride is not supported",
    r"\bpictures?\b": "image",
    r"\bcounted within ReLU\b": "fused ReLU and count",
    r"\bevery way\b|\bin each way\b|\bthe fastest way\b|\bfaster way\b": "implementation",
    r"\bwaves of the basis\b|\bcosine waves\b": "basis",
}
"""Words that a reader would have to decode, and what the field calls them."""
FAULTS = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in HOME_MADE.items()}


def faults(text: str) -> list[str]:
    """The home-made words of a text, with the words to use."""
    flat = " ".join(text.split())
    return [f"{found[0]!r}: {instead}" for pattern, instead in FAULTS.items() if (found := pattern.search(flat))]


def prose(page: Path) -> str:
    """A page without code, formulas, links and comments."""
    no_prose = r"(?ms)^```.*?^```|<!--.*?-->|`[^`\n]*`|\$\$.*?\$\$|\]\([^)]*\)"
    return re.sub(no_prose, " ", page.read_text(encoding="utf-8"))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each public docstring of a module, and of each literal ``help=``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from public(tree)
    helps = (node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in HELP)
    yield from ((value.lineno, text) for value in helps if (text := string(value)))


def public(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """Docstrings of a node and of what it holds, without names that begin with an underscore."""
    name = ""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("_"):
                yield from public(child)
        elif isinstance(child, ast.Expr) and not name.startswith("_") and (text := string(child.value)):
            yield child.lineno, text
        target = child.targets[0] if isinstance(child, ast.Assign) else getattr(child, "target", None)
        name = target.id if isinstance(target, ast.Name) else ""


def string(node: ast.expr) -> str:
    """A literal text, or nothing."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def modules() -> list[Path]:
    """All modules of lamina."""
    return sorted(SOURCES.rglob("*.py"))


def pages() -> list[Path]:
    docs = ROOT / "docs"
    mine = [page for page in sorted(docs.rglob("*.md")) if page.relative_to(docs).parts[0] not in GENERATED]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *mine]


def test_docstrings_and_help() -> None:
    found = {
        f"{path.relative_to(SOURCES)}:{line}": wrong
        for path in modules()
        for line, text in docstrings(path)
        if (wrong := faults(text))
    }
    assert found == {}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    assert faults(prose(page)) == []


@pytest.mark.parametrize(
    "text",
    ["played from a tape", "no number without its birthplace", "launched one by one", "two float16 halves",
     "80 % of the roof", "timed by turns", "bytes bind", "a remark", "the speed-up", "whoever", "a picture",
     "divisions are dear", "living\n    channels"],
)  # fmt: skip
def test_home_made_words_are_found(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    ["half precision", "the upper half", "both halves of the sets", "launch by launch", "taper",
     "a wave of thread blocks",
     "roofline", "of the roofline", "remarkable", "the index of a pixel", "it takes turns", "anyway"],
)  # fmt: skip
def test_words_of_the_field_pass(text: str) -> None:
    assert not faults(text)


def test_private_docstrings_and_code_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text('def _f():\n    """A tape."""\n\nTAPE = 1\n"""A tape."""\n')
    (tmp_path / "m.md").write_text("`tape`\n\n```\ntape\n```\n\nA cache.\n")
    assert [line for line, _ in docstrings(tmp_path / "m.py")] == [5]
    assert faults(prose(tmp_path / "m.md")) == []
