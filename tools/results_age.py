"""The age of results: how many files of the code that each results file measures have changed since.

Comments, docstrings, texts of columns and options, the layout of lines, and where masks are from are not code: a change
of them makes no result old.

Run: python tools/results_age.py            one line for each file that is not of today's code
     python tools/results_age.py --page F   writes them as a page
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

CUDA, MASKS = (".cu", ".cpp"), ".npz"
TEXTS = ("doc", "help")
"""Keyword arguments that describe columns and options."""
METHODS, KERNELS = "accelerate/methods", ("accelerate/common", "accelerate/runtime")
LAYERS = (f"{METHODS}/circulant", f"!{METHODS}/circulant/lstm", *KERNELS)
"""Circulant layers of networks without recurrence. ``!`` leaves a folder out."""
CIRCULANT = (f"{METHODS}/circulant", "accelerate/papers/circulant_ladder", *KERNELS)
NO_MASKS = "!simulate/workloads/masks"
WHOLE = ("accelerate/select", "pipeline/graphed", "pipeline/convert.py")
SPARSE = (f"{METHODS}/activation_sparsity", "accelerate/training/sparsity_monitor", *KERNELS)
ELIMINATION = (f"{METHODS}/elimination", *KERNELS)
FISSION = (f"{METHODS}/weight_only", "accelerate/papers/on_chip_fission", *KERNELS)
MEASURED: Mapping[str, tuple[str, ...]] = {
    "alexnet_layers": ("measure/clocks", "run", "build/models"),
    "characterization": ("pipeline/profile", "measure", "accelerate/papers/l1_bypass"),
    "circulant": CIRCULANT,
    "circulant_accuracy_vgg": LAYERS,
    "circulant_layers": LAYERS,
    "circulant_sums": LAYERS,
    "compaction": ("simulate/compaction_engine", "simulate/hierarchy"),
    "deft_front": ("pipeline/deft", "pipeline/reproduce/live/front.py", *ELIMINATION),
    "deft_networks": ("pipeline/deft", *ELIMINATION),
    "elimination": ELIMINATION,
    "fission_simt": FISSION,
    "fission_unit": ("simulate/fission_unit", "simulate/hierarchy"),
    "fission_weights": FISSION,
    "gauntlet": ("", NO_MASKS, "!recipes/papers/recorded"),
    "hierarchy": ("simulate/hierarchy", "simulate/workloads", NO_MASKS),
    "ladder_sparse_gemm": SPARSE,
    "ladder": CIRCULANT,
    **{f"ladder_{name}": LAYERS for name in ("activations", "bias_gradient", "channel_sums", "rows")},
    **{f"ladder_{name}": LAYERS for name in ("weight_reduction", "windows")},
    "monitor_overhead": ("accelerate/training/sparsity_monitor",),
    "multi_gpu": ("measure/collectives.py", *LAYERS),
    "never_slower_circulant": ("accelerate/select", *CIRCULANT),
    "never_slower_eliminated": ("accelerate/select", *ELIMINATION),
    "never_slower_fused": ("accelerate/select", f"{METHODS}/fusion", *KERNELS),
    "never_slower_sparse": ("accelerate/select", *SPARSE),
    "never_slower_weight_only": ("accelerate/select", *FISSION),
    "profile": ("measure/counters", "measure/clocks", "run", "build/models"),
    "published_designs": ("simulate", NO_MASKS),
    "published_figures": ("simulate/compaction_engine", "simulate/hierarchy"),
    "published_recorded": ("simulate/compaction_engine", "simulate/hierarchy", "simulate/workloads"),
    "published_fission": ("simulate/fission_unit", "simulate/hierarchy"),
    "reliability_fuzz": ("spec", "measure/recorded", "store/document.py", "store/trace.py", "build/data"),
    "reliability_kills": ("store", "pipeline", "cli"),
    "saved_activations": ("accelerate/training/compressed_activations",),
    "sparse": SPARSE,
    "store": ("store",),
    "studies": ("pipeline/study", "accelerate"),
    "sweep_engines": ("pipeline/sweep",),
    "what_if": ("pipeline/what_if", "run"),
    "whole_steps": (*WHOLE, *LAYERS),
    "whole_steps_gpt2_tf32": ("accelerate/stand_ins.py", *WHOLE, *LAYERS),
    "whole_steps_lstm": (*WHOLE, *CIRCULANT),
    "whole_steps_vit_b_16": ("accelerate/attention.py", "accelerate/stand_ins.py", *WHOLE, *LAYERS),
}
"""By the beginning of a file's name, the longest first, the code under ``src/lamina`` that it measures.

Of the modules in `KERNELS`, which methods share, those count that the others import.
"""


@dataclass(frozen=True)
class Age:
    """How old a results file is."""

    file: str
    commit: str
    date: str
    changed: tuple[str, ...]
    """Files of the measured code that differ in more than texts from those that were measured."""


def measured(name: str) -> tuple[str, ...]:
    """The folders of the code that a results file measures.

    Raises:
        LookupError: no list has them.
    """
    known = [prefix for prefix in MEASURED if name.startswith(prefix)]
    if not known:
        raise LookupError(f"{name}: its code is not listed in tools/results_age.py")
    paths = MEASURED[max(known, key=len)]
    return tuple(f":!src/lamina/{path[1:]}" if path.startswith("!") else f"src/lamina/{path}" for path in paths)


def ages() -> list[Age]:
    """The age of every results file, the oldest first."""
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        told, paths = document["provenance"], measured(path.name)
        files = {file for commit in commits(document) for file in changed(commit.partition("+")[0], paths)}
        found.append(Age(path.name, told["commit"], told["date"][:10], tuple(sorted(files))))
    return sorted(found, key=lambda one: (-len(one.changed), one.file))


def commits(document: Mapping[str, Any]) -> set[str]:
    """The commits that a results file was measured from: runs that were resumed keep their own."""
    summary, rows = document["summary"], (row for row in document["rows"] if "of_commit" in row)
    parts = {*summary.get("commits", {}).values(), *summary.get("cells by commit", ())}
    return {document["provenance"]["commit"], *parts, *(row["of_commit"] for row in rows)}


@cache
def changed(commit: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The files under paths whose code differs between a commit and HEAD."""
    found = []
    for line in git("diff", "--raw", "--abbrev=40", "--no-renames", commit, "HEAD", "--", *paths).splitlines():
        about, path = line.split("\t")
        _, _, before, after, _ = about.split()
        if code(before, path) != code(after, path):
            found.append(path)
    shared = tuple(f"src/lamina/{one}/" for one in KERNELS)
    if not any(path.startswith(shared) for path in found):
        return tuple(found)
    used = imported(paths, shared)
    return tuple(path for path in found if not path.startswith(shared) or not path.endswith(".py") or path in used)


@cache
def imported(paths: tuple[str, ...], shared: tuple[str, ...]) -> set[str]:
    """The shared modules that modules under paths import, in turn too, today."""
    listed = git("ls-files", "--", *paths).splitlines()
    waiting = [path for path in listed if path.endswith(".py") and not path.startswith(shared)]
    found: set[str] = set()
    while waiting:
        for name in modules(ROOT / waiting.pop()):
            words = name.split(".")
            packages = ("/".join([*words[:count], "__init__"]) for count in range(1, len(words) + 1))
            for path in (f"src/{one}.py" for one in ("/".join(words), *packages)):
                if path.startswith(shared) and path not in found and (ROOT / path).exists():
                    found.add(path)
                    waiting.append(path)
    return found


def modules(path: Path) -> Iterator[str]:
    """The names that a module imports: of modules, and of what it takes out of them, which may be modules too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


@cache
def code(blob: str, path: str) -> str:
    """The code of a version of a file, without its texts; of masks, hashes of the arrays; of data, its name in git."""
    if int(blob, 16) and path.endswith(MASKS):
        with np.load(BytesIO(git_bytes("cat-file", "blob", blob))) as arrays:
            return " ".join(sha256(arrays[name].tobytes()).hexdigest() for name in sorted({*arrays} - {"provenance"}))
    if not int(blob, 16) or not path.endswith((".py", *CUDA)):
        return blob
    text = git("cat-file", "blob", blob)
    if path.endswith(CUDA):
        return "".join(re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).split())
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "body") and isinstance(node.body, list):
            node.body = [one for one in node.body if not is_text(one)]
        if isinstance(node, ast.Call):
            node.keywords = [one for one in node.keywords if one.arg not in TEXTS or not is_string(one.value)]
    return ast.dump(tree)


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a string by itself, as docstrings are."""
    return isinstance(node, ast.Expr) and is_string(node.value)


def is_string(node: ast.AST) -> bool:
    """Whether an expression is a string as it stands."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def git(*words: str) -> str:
    return git_bytes(*words).decode().strip()


def git_bytes(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


def page(found: list[Age]) -> str:
    """The ages as a page."""
    lines = [
        "# Age of the results", "",
        "Files of the measured code that have changed since a results file was made, in more than comments and",
        "texts. `python -m benchmarks.again` measures what is old again, from one commit.", "",
        "| Results file | Date | Commit | Changed files |", "|---|---|---|--:|",
        *(f"| {one.file} | {one.date} | `{one.commit[:12]}` | {len(one.changed)} |" for one in found),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tools/results_age.py")
    parser.add_argument("--page", type=Path, help="file to write the ages to, as a page of the documentation")
    asked = parser.parse_args()
    found = ages()
    if asked.page:
        asked.page.write_text(page(found), encoding="utf-8")
        return
    old = [one for one in found if one.changed]
    for one in old:
        first, *others = one.changed
        print(f"{one.file}: since {one.commit[:12]}, {first}" + f" and {len(others)} more" * bool(others))
    print(f"{len(old)} of {len(found)} results files are older than the code that they measure")


if __name__ == "__main__":
    main()
