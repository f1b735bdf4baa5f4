"""Results files: one schema, so that anyone can recompute a claim."""

from __future__ import annotations

import argparse
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lamina import measure
from lamina.record import Environment, Timing

VERSIONS = ("lamina", "python", "torch", "triton", "numpy", "cuda", "cudnn", "ncu")
FOLDER = Path(__file__).parent / "results"

Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Row(BaseModel):
    """One measurement. Other columns may follow."""

    model_config = ConfigDict(strict=True, extra="allow")

    workload: Text
    layer: str
    phase: Literal["forward", "backward_data", "backward_weight", "step", "end_to_end"]
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp64"]
    layout: str
    impl: Annotated[str, Field(pattern=r"^[a-z][\w-]*(:\w+)?(\[.+\])?$")]
    batch: Annotated[int, Field(gt=0)]
    timing: Literal["wall", "events", "cupti", "graph", "ncu", "cpu", "simulated"]
    l2: Literal["cold", "warm"] | None
    median_us: Time
    q1_us: Time
    q3_us: Time
    n: Annotated[int, Field(gt=0)]
    rel_error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    unchecked: Text | None = None
    """Why there is no error to compare: a row without one must say so."""

    @model_validator(mode="after")
    def an_absent_error_is_explained(self) -> Self:
        if (self.rel_error is None) == (self.unchecked is None):
            raise ValueError("expected either rel_error, or unchecked with the reason why there is none")
        return self

    @model_validator(mode="after")
    def quartiles_enclose_the_median(self) -> Self:
        if not self.q1_us <= self.median_us <= self.q3_us:
            raise ValueError(f"expected q1 <= median <= q3, got {self.q1_us}, {self.median_us}, {self.q3_us}")
        return self


class Provenance(BaseModel):
    """The machine, and the versions of what ran on it."""

    model_config = ConfigDict(extra="allow")

    device: Text
    driver: Text
    versions: Annotated[dict[str, str], Field(min_length=1)]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}(\+dirty)?$")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d")]
    command: Text


class Results(BaseModel):
    """A claim's file."""

    model_config = ConfigDict(extra="allow")

    claim: Text
    provenance: Provenance
    rows: Annotated[list[Row], Field(min_length=1)]


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


def quartiles(timing: Timing) -> dict[str, Any]:
    """A timing as a row has it."""
    return {"median_us": timing.median_us, "q1_us": timing.q1_us, "q3_us": timing.q3_us, "n": timing.n}


def provenance(environment: Environment, commit: str | None, command: str) -> dict[str, Any]:
    """Where a result was born: the machine, and the versions of what ran on it."""
    known = {key: value for key, value in asdict(environment).items() if value is not None}
    versions = {key: known.pop(key) for key in VERSIONS if key in known}
    known.setdefault("driver", "none")  # of a machine without a GPU
    return known | {"versions": versions, "commit": commit, "command": command}


def _named(value: Any) -> Any:
    """Numbers that are not finite by name, since JSON has none."""
    match value:
        case float() if not isfinite(value):
            return str(value)
        case dict():
            return {key: _named(one) for key, one in value.items()}
        case list() | tuple():
            return [_named(one) for one in value]
        case _:
            return value


def write(
    claim: str,
    device: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    asked: argparse.Namespace,
    command: str = "",
) -> Path:
    """Write a claim's rows with their provenance into ``asked.output``; ``command`` where it is not named so.

    What does not fit the schema is written all the same, with a warning, since measuring took long.
    """
    environment = measure.environment(device)
    birth = provenance(environment, asked.commit or environment.commit, f"python -m benchmarks.{command or claim}")
    if birth["commit"] is None:
        raise SystemExit("expected a checkout, or --commit: a result without its commit proves nothing")
    document = {"claim": claim, "provenance": birth, "summary": summary, "rows": list(rows)}
    chip = re.sub(r"[^a-z0-9]+", "-", environment.device.lower()).strip("-")
    path: Path = asked.output / f"{claim}_{chip}_{environment.date[:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_named(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    try:
        Results.model_validate(document)
    except ValidationError as error:
        warnings.warn(f"{path} does not fit the schema of results: {error}", stacklevel=2)
    return path
