"""Runs a command in a process of its own, which shares no library state with this one."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence

from lamina.errors import LaminaError


def run_subprocess(line: Sequence[str], accepted: Collection[int] = (0,)) -> None:
    """Run a command to its end.

    Raises:
        LaminaError: its exit code is not in ``accepted``; the message has its last line of output.
    """
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in accepted:
        output = [text for text in done.stderr.splitlines() if text.strip()] or ["no output"]
        raise LaminaError(f"a subprocess failed with code {done.returncode}: {output[-1]}")
