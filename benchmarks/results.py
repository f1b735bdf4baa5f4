"""Results files: one schema, so that anyone can recompute a claim."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lamina import measure

FOLDER = Path(__file__).parent / "results"


def environment_with(**variables: str) -> dict[str, str]:
    """This process's environment with some variables changed, for a command run as a user would."""
    return os.environ | variables


def write(
    claim: str,
    device: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    folder: Path = FOLDER,
) -> Path:
    """Write a claim's rows with their provenance; never over an earlier file of another day."""
    environment = measure.environment(device)
    document = {
        "claim": claim,
        "provenance": {
            **{key: value for key, value in asdict(environment).items() if value is not None},
            "command": shlex.join(["python", "-m", f"benchmarks.{claim}", *sys.argv[1:]]),
        },
        "summary": summary,
        "rows": list(rows),
    }
    chip = re.sub(r"[^a-z0-9]+", "-", environment.device.lower()).strip("-")
    path = folder / f"{claim}_{chip}_{environment.date[:10]}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path
