"""Selections kept in a file, so that each question is measured once per machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lamina.errors import UsageError
from lamina.record import Selection

NAME = "selections.json"
_FIELDS = {"impl", "reason", "times_us", "mode", "refusals"}


class Cache:
    """Selections by question, in ``selections.json``.

    Args:
        folder: where the file is kept; made if need be. ``None`` keeps selections in memory alone.
        provenance: what times depend on: device, driver, library versions. An answer from another provenance is not
            returned.

    Raises:
        UsageError: the file is there and is no file of selections.
    """

    def __init__(self, folder: Path | None, provenance: Mapping[str, str]) -> None:
        self.path = None if folder is None else Path(folder) / NAME
        self.provenance = dict(provenance)
        self._known = self._read()

    def get(self, question: str) -> Selection | None:
        """The answer to a question under today's provenance."""
        known = self._known.get(question)
        if known is None or known["provenance"] != self.provenance:
            return None
        quartiles = {name: (pair[0], pair[1]) for name, pair in known.get("quartiles_us", {}).items()}
        return Selection(**{name: known[name] for name in _FIELDS}, quartiles_us=quartiles)

    def put(self, question: str, selection: Selection) -> None:
        """Keep an answer; those that other processes wrote meanwhile stay.

        Raises:
            UsageError: the file cannot be written.
        """
        if self.path is not None:
            self._known = self._read() | self._known
        self._known[question] = asdict(selection) | {"provenance": self.provenance}
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Renamed over the old file, so that no reader sees half a file; other processes write their own.
            fresh = self.path.with_suffix(f".{os.getpid()}")
            text = json.dumps({"version": 1, "selections": self._known}, indent=1, sort_keys=True)
            fresh.write_text(text + "\n", encoding="utf-8")
            fresh.replace(self.path)
        except OSError as error:
            raise UsageError(f"cache: {self.path} cannot be written ({error.strerror}); give another folder") from error

    def _read(self) -> dict[str, Any]:
        if self.path is None or not self.path.exists():
            return {}
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))["selections"]
            if not all(_FIELDS | {"provenance"} <= {*answer} for answer in known.values()):
                raise KeyError("selections")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{self.path}: expected a file of selections, got {error!r}; delete it") from error
        return dict(known)
