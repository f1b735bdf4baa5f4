"""Results files: one schema, so that anyone can recompute a claim."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lamina import measure
from lamina.record import Environment

VERSIONS = ("lamina", "python", "torch", "triton", "numpy", "cuda", "cudnn", "ncu")
FOLDER = Path(__file__).parent / "results"


def environment_with(**variables: str) -> dict[str, str]:
    """This process's environment with some variables changed, for a command run as a user would."""
    return os.environ | variables


def arguments(claim: str, **choices: Sequence[str]) -> argparse.Namespace:
    """What every benchmark takes from its command line; ``choices`` are words it asks for besides, by name."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{claim}")
    for name, words in choices.items():
        parser.add_argument(name, choices=words)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of results")
    parser.add_argument("--commit", help="commit of this source, where it is no checkout that could tell")
    return parser.parse_args()


def provenance(environment: Environment, commit: str | None, command: str) -> dict[str, Any]:
    """Where a result was born: the machine, and the versions of what ran on it."""
    known = {key: value for key, value in asdict(environment).items() if value is not None}
    versions = {key: known.pop(key) for key in VERSIONS if key in known}
    known.setdefault("driver", "none")  # of a machine without a GPU
    return known | {"versions": versions, "commit": commit, "command": command}


def write(
    claim: str,
    device: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    asked: argparse.Namespace,
    command: str = "",
) -> Path:
    """Write a claim's rows with their provenance into ``asked.output``; ``command`` where it is not named so."""
    environment = measure.environment(device)
    birth = provenance(environment, asked.commit or environment.commit, f"python -m benchmarks.{command or claim}")
    if birth["commit"] is None:
        raise SystemExit("expected a checkout, or --commit: a result without its commit proves nothing")
    document = {"claim": claim, "provenance": birth, "summary": summary, "rows": list(rows)}
    chip = re.sub(r"[^a-z0-9]+", "-", environment.device.lower()).strip("-")
    path: Path = asked.output / f"{claim}_{chip}_{environment.date[:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path
