"""The age of results: how many commits changed the code that each file measures since it was measured.

Run: python tools/results_age.py            one line for each file that is not of today's code
     python tools/results_age.py --page F   writes them as a page
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

METHODS, KERNELS = "accelerate/methods", ("accelerate/common", "accelerate/runtime")
CIRCULANT = (f"{METHODS}/circulant", "accelerate/papers/circulant_ladder", *KERNELS)
SPARSE = (f"{METHODS}/activation_sparsity", "accelerate/training/sparsity_monitor", *KERNELS)
ELIMINATION = (f"{METHODS}/elimination", *KERNELS)
FISSION = (f"{METHODS}/weight_only", "accelerate/papers/on_chip_fission", *KERNELS)
MEASURED: Mapping[str, tuple[str, ...]] = {
    "alexnet_layers": ("measure/clocks", "run", "build/models"),
    "characterization": ("pipeline/profile", "measure", "accelerate/papers/l1_bypass"),
    "circulant": CIRCULANT,
    "compaction": ("simulate/compaction_engine", "simulate/hierarchy"),
    "deft_front": ("pipeline/deft", "pipeline/reproduce/live/front.py", *ELIMINATION),
    "deft_networks": ("pipeline/deft", *ELIMINATION),
    "elimination": ELIMINATION,
    "fission_simt": FISSION,
    "fission_unit": ("simulate/fission_unit", "simulate/hierarchy"),
    "fission_weights": FISSION,
    "gauntlet": ("",),
    "hierarchy": ("simulate/hierarchy", "simulate/workloads"),
    "ladder_sparse_gemm": SPARSE,
    "ladder": CIRCULANT,
    "monitor_overhead": ("accelerate/training/sparsity_monitor",),
    "never_slower_circulant": ("accelerate/select", *CIRCULANT),
    "never_slower_eliminated": ("accelerate/select", *ELIMINATION),
    "never_slower_fused": ("accelerate/select", f"{METHODS}/fusion", *KERNELS),
    "never_slower_sparse": ("accelerate/select", *SPARSE),
    "never_slower_weight_only": ("accelerate/select", *FISSION),
    "profile": ("measure/counters", "measure/clocks", "run", "build/models"),
    "published_designs": ("simulate",),
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
    "whole_steps": ("accelerate/select", "pipeline/graphed", *CIRCULANT),
}
"""By the beginning of a file's name, the longest first, the code under ``src/lamina`` that it measures."""


@dataclass(frozen=True)
class Age:
    """How old a results file is."""

    file: str
    commit: str
    date: str
    newer: int
    """Commits that changed the measured code since."""


def measured(name: str) -> tuple[str, ...]:
    """The folders of the code that a results file measures.

    Raises:
        LookupError: no list has them.
    """
    known = [prefix for prefix in MEASURED if name.startswith(prefix)]
    if not known:
        raise LookupError(f"{name}: its code is not listed in tools/results_age.py")
    return tuple(f"src/lamina/{path}" for path in MEASURED[max(known, key=len)])


def ages() -> list[Age]:
    """The age of every results file, the oldest first."""
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))["provenance"]
        commit = told["commit"].partition("+")[0]
        newer = git("rev-list", "--count", f"{commit}..HEAD", "--", *measured(path.name))
        found.append(Age(path.name, told["commit"], told["date"][:10], int(newer)))
    return sorted(found, key=lambda one: (-one.newer, one.file))


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()


def page(found: list[Age]) -> str:
    """The ages as a page."""
    lines = [
        "# Age of the results", "",
        "Commits that have changed the measured code since a results file was made, renames and texts included.",
        "`python -m benchmarks.again` measures what is old again, from one commit.", "",
        "| Results file | Date | Commit | Newer commits |", "|---|---|---|--:|",
        *(f"| {one.file} | {one.date} | `{one.commit[:12]}` | {one.newer} |" for one in found),
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
    old = [one for one in found if one.newer]
    for one in old:
        print(f"{one.file}: {one.newer} commits have changed the measured code since {one.commit[:12]}")
    print(f"{len(old)} of {len(found)} results files are older than the code that they measure")


if __name__ == "__main__":
    main()
