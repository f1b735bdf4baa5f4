"""Work in a process of its own, where nothing that a library remembers of this one is known."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence

from lamina.errors import LaminaError


def run_elsewhere(line: Sequence[str], accepted: Collection[int] = (0,)) -> None:
    """Run a command to its end.

    Raises:
        LaminaError: it ended with a code that is not ``accepted``; with the last it said.
    """
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in accepted:
        said = [text for text in done.stderr.splitlines() if text.strip()] or ["it said nothing"]
        raise LaminaError(f"a second process failed with code {done.returncode}: {said[-1]}")
