"""Stages of a benchmark, each of which is kept until the last has ended: an interrupted run goes on with the next."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks import source
from lamina import measure

Found = TypeVar("Found")
"""What JSON can hold."""


class Stages:
    """What the stages of a benchmark have found, in a folder beside its results.

    It is only used for the same commit, which must be clean, on the same device.
    """

    def __init__(self, claim: str, device: str, output: Path):
        self.folder = output / f"unfinished_{claim}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._of = {"commit": source.commit(), "device": measure.environment(device).device}

    def __call__(self, name: str, stage: Callable[[], Found]) -> Found:
        """What a stage finds, now or in the run that was interrupted."""
        path = self.folder / f"{name}.json"
        if path.exists() and not self._of["commit"].endswith(source.DIRTY):
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["of"] == self._of:
                print(f"{name}: kept from the run before", flush=True)
                found: Found = kept["found"]
                return found
        found = stage()
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"of": self._of, "found": found}), encoding="utf-8")
        draft.replace(path)
        return found

    def finish(self) -> None:
        """Forget all: the results are written."""
        shutil.rmtree(self.folder)
