"""What a study measured, in a file of one JSON document a line: a killed study goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """Answers by question.

    Args:
        path: the file; made with the first answer. ``None`` keeps answers in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known = self._read()

    def __contains__(self, question: str) -> bool:
        return question in self._known

    def __getitem__(self, question: str) -> Any:
        return self._known[question]

    def put(self, question: str, answer: Any) -> Any:
        """Keep an answer, JSON-able, and return it."""
        self._known[question] = answer
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:  # one write a line: a killed process leaves whole lines
                file.write(json.dumps([question, answer], allow_nan=False) + "\n")
        return answer

    def _read(self) -> dict[str, Any]:
        if self.path is None or not self.path.exists():
            return {}
        known: dict[str, Any] = {}
        text = self.path.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            try:
                question, answer = json.loads(line)
                known[str(question)] = answer
            except (ValueError, TypeError):  # the line that a killed process was writing
                continue
        if text and not text.endswith("\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")
        return known
