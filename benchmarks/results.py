"""Results files with a common schema, so that claims can be reproduced."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmarks import source
from lamina import measure
from lamina.record import Environment, Timing

PROCESS = measure.Stopwatch()
"""Runs since the benchmark began."""
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
    """The reason why there is no error; required for a row without one."""

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
    """Provenance: device, driver, software versions, commit, date and command."""

    model_config = ConfigDict(extra="allow")

    device: Text
    driver: Text
    versions: Annotated[dict[str, str], Field(min_length=1)]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}(\+dirty)?$")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d")]
    command: Text


class Results(BaseModel):
    """The results file of a claim."""

    model_config = ConfigDict(extra="allow")

    claim: Text
    provenance: Provenance
    rows: Annotated[list[Row], Field(min_length=1)]


def environment_with(**variables: str) -> dict[str, str]:
    """This process's environment with changed variables, for running a command line."""
    return os.environ | variables


def arguments(claim: str, **choices: Sequence[str]) -> argparse.Namespace:
    """Command-line arguments of every benchmark; ``choices`` are further positional arguments, by name."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{claim}")
    for name, words in choices.items():
        parser.add_argument(name, choices=words)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of results")
    return parser.parse_args()


def names_of(*known: str) -> Callable[[str], str]:
    """The type of an option that has known names between commas; argparse refuses others."""

    names = ",".join(dict.fromkeys(known))

    def checked(text: str) -> str:
        if unknown := sorted({*text.split(",")} - {*known}):
            raise argparse.ArgumentTypeError(f"expected some of {names}, got {','.join(unknown)}")
        return text

    return checked


def command(
    claim: str, asked: argparse.Namespace, parser: argparse.ArgumentParser, without: Sequence[str] = ()
) -> str:
    """The words by which the same is measured again: options that are not at their defaults, but where results go."""
    given = {name: value for name, value in vars(asked).items() if name not in ("output", *without)}
    changed = {name: value for name, value in given.items() if value != parser.get_default(name)}
    words = ((f"--{name.replace('_', '-')}", str(value)) for name, value in changed.items())
    return shlex.join([claim, *chain.from_iterable(words)])


def quartiles(timing: Timing) -> dict[str, Any]:
    """The columns of a timing."""
    return {"median_us": timing.median_us, "q1_us": timing.q1_us, "q3_us": timing.q3_us, "n": timing.n}


def provenance(environment: Environment, commit: str, command: str) -> dict[str, Any]:
    """The provenance of a result."""
    known = {key: value for key, value in asdict(environment).items() if value is not None}
    versions = {key: known.pop(key) for key in VERSIONS if key in known}
    known.setdefault("driver", "none")  # a machine without a GPU
    return known | {"versions": versions, "commit": commit, "command": command}


def resumed(path: Path | None, device: str | None = None) -> list[dict[str, Any]]:
    """The rows of an interrupted benchmark's results; each keeps the commit that it was measured from.

    Args:
        path: of the results, if there are any.
        device: that they must be of, as `measure.environment` takes it; unnamed, any.

    Raises:
        SystemExit: they are of another device, or of a source that differed from its commit.
    """
    if path is None:
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    told = earlier["provenance"]
    if told["commit"].endswith(source.DIRTY):
        raise SystemExit(f"{path}: its source differed from its commit")
    if device is not None and told["device"] != (here := measure.environment(device).device):
        raise SystemExit(f"{path}: expected results of this device, {here}, got {told['device']}")
    return [{"of_commit": told["commit"]} | row for row in earlier["rows"]]


def chip(device: str) -> str:
    """The name of a device in names of files."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _named(value: Any) -> Any:
    """Non-finite numbers as strings, since JSON does not have them."""
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
    args: argparse.Namespace,
    command: str = "",
) -> Path:
    """Write the rows of a claim with their provenance to ``args.output``; ``command`` if it differs from the claim.

    Rows that violate the schema are written with a warning, since measuring them took long. Those of a source that
    differs from its commit are not published: they go to the working directory instead.
    """
    environment, commit = measure.environment(device), source.commit()
    told = provenance(environment, commit, f"python -m benchmarks.{command or claim}")
    told["seconds"] = round(PROCESS.seconds)
    document = {"claim": claim, "provenance": told, "summary": summary, "rows": list(rows)}
    folder: Path = args.output
    if commit.endswith(source.DIRTY) and folder == FOLDER:
        folder = Path.cwd()
        warnings.warn(f"the source differs from commit {commit[:12]}: the results are not published", stacklevel=2)
    path = folder / f"{claim}_{chip(environment.device)}_{environment.date[:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_named(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    try:
        Results.model_validate(document)
    except ValidationError as error:
        warnings.warn(f"{path} does not fit the schema of results: {error}", stacklevel=2)
    return path
