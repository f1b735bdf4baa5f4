"""The commit of the source that a benchmark runs, as git says it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lamina.measure.environment import archived

ROOT = Path(__file__).parents[1]
WRITTEN = ("benchmarks/results", "docs", "src/lamina/recipes/papers/recorded")
"""What benchmarks and tools write: changes there are none of the source."""
DIRTY = "+dirty"


def commit() -> str:
    """The commit, with ``+dirty`` if tracked files of the source differ from it.

    Raises:
        SystemExit: these files are neither a checkout nor an archive by ``git archive``.
    """
    if head := _git("rev-parse", "HEAD") if _git("ls-files", "benchmarks/source.py") else "":
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *(f":!{path}" for path in WRITTEN))
        return head + DIRTY if changed else head
    if exported := archived(ROOT / "src" / "lamina"):
        return exported
    raise SystemExit("a result needs its commit: run in a checkout, or in an archive that 'git archive' made")


def _git(*words: str) -> str:
    """What git prints; nothing where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
