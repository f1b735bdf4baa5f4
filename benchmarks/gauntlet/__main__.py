"""Run the gauntlet and write its matrix; see the package."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from benchmarks import results, source
from benchmarks.gauntlet.cells import BATCH, ENDINGS, VERBS, Cell, consequence, with_needs
from benchmarks.gauntlet.models import EXCLUDED, Model, chosen, elements
from benchmarks.gauntlet.workers import Journal, folder_of, run_all

CLAIM = "gauntlet"
PACE = 30.0
"""Seconds between two lines of progress where no terminal shows one line."""


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gauntlet", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: processes share its GPUs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a cell may take")
    parser.add_argument("--stop-after", type=float, default=inf, help="seconds; then write the cells that have ended")
    parser.add_argument("--models", default="*", help="patterns between commas, such as timm:*,*hostile*")
    parser.add_argument("--sample", type=int, help="only so many networks, drawn at random but always the same")
    parser.add_argument("--verbs", default=",".join(VERBS), help="between commas")
    parser.add_argument("--work", type=Path, default=Path("build-log/gauntlet"), help="folder to continue from")
    parser.add_argument("--again", default="", help="run cells again that ended so: traceback,timeout,refused")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    return parser


def command(args: argparse.Namespace) -> str:
    """What results tell: neither how many processes ran, nor from where they continued."""
    return results.command(CLAIM, args, options(), without=("jobs", "work", "again"))


def rows(networks: Sequence[Model], found: Mapping[tuple[str, str], Cell], device: str) -> list[dict[str, Any]]:
    """A row for each network: how each of its verbs ended, why, and in how many seconds."""
    made = []
    for model in networks:
        cells = {verb: found[model.spec, verb] for verb in VERBS if (model.spec, verb) in found}
        if not cells:
            continue
        total_us = max(1.0, 1e6 * sum(cell.seconds for cell in cells.values()))
        made.append(
            {
                "workload": model.name, "layer": "", "phase": "end_to_end", "precision": "fp32", "layout": "nchw",
                "impl": "dense", "batch": BATCH, "timing": "wall", "l2": None if device == "cpu" else "warm",
                "median_us": total_us, "q1_us": total_us, "q3_us": total_us, "n": 1, "rel_error": None,
                "unchecked": "the time in which all verbs ended, beside other processes", "source": model.source,
                "cells": {verb: cell.ending for verb, cell in cells.items()},
                "reasons": {verb: cell.reason for verb, cell in cells.items() if cell.ending != "ok"},
                "seconds": {verb: cell.seconds for verb, cell in cells.items()},
            }
        )  # fmt: skip
    return made


def summary(found: Sequence[Cell]) -> dict[str, Any]:
    """Counts of endings, over all cells and by verb."""
    count = Counter(cell.ending for cell in found)
    total: dict[str, Any] = {
        "models": len({cell.model for cell in found}),
        "cells": len(found),
        **{one: count[one] for one in ENDINGS},
    }
    total["refused_percent"] = round(100 * count["refused"] / max(1, len(found)), 2)
    by_verb = {
        verb: {one: sum(cell.verb == verb and cell.ending == one for cell in found) for one in ENDINGS}
        for verb in VERBS
    }
    commits = Counter(cell.commit for cell in found)  # a run may continue one of older code
    return {**total, "excluded": EXCLUDED, "verbs": by_verb, "cells by commit": commits}


class Progress:
    """One line on stderr, replaced as cells end, or one now and then where that is no terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.start, self.shown = total, time.monotonic(), 0.0
        self.count: Counter[str] = Counter()

    def __call__(self, cell: Cell) -> None:
        self.count[cell.ending] += 1
        if cell.ending not in ("ok", "refused"):
            self._print(f"{cell.ending}: {cell.model} {cell.verb}: {cell.reason}", "\n")
        passed = time.monotonic() - self.start
        done = sum(self.count.values())
        if sys.stderr.isatty() or passed > self.shown + PACE or done == self.total:
            self.shown = passed
            counts = ", ".join(f"{count} {ending}" for ending, count in self.count.items())
            line = f"{done} of {self.total} cells after {passed:.0f} s: {counts}; {cell.model} {cell.verb}"
            self._print(line, "\r" if sys.stderr.isatty() else "\n")

    def _print(self, text: str, end: str) -> None:
        clear = "\x1b[K" if sys.stderr.isatty() else ""
        print(clear + text, end=end, file=sys.stderr, flush=True)


def main() -> None:
    args = options().parse_args()
    networks, verbs = chosen(args.models, args.device), args.verbs.split(",")
    unknown = sorted({*verbs} - {*VERBS})
    if unknown or not networks:
        raise SystemExit(f"expected verbs of {', '.join(VERBS)} and models that exist, got {args.verbs}, {args.models}")
    commit = source.commit()
    if args.sample and args.sample < len(networks):
        networks = tuple(random.Random(0).sample(networks, args.sample))
    journal = Journal(args.work / f"cells-{args.device}.jsonl")
    found = journal.read()
    found |= {key: consequence(cell, found) for key, cell in found.items()}
    again = args.again.split(",")
    work = {
        model: with_needs(todo, folder_of(model.spec, args.work))
        for model in (networks if args.sample else sorted(networks, key=elements, reverse=args.jobs > 1))
        if (todo := [v for v in verbs if (model.spec, v) not in found or found[model.spec, v].ending in again])
    }
    progress = Progress(sum(map(len, work.values())))
    end = time.monotonic() + args.stop_after
    for cell in run_all(work, args.device, args.work, args.jobs, args.limit):
        cell = replace(consequence(cell, found), commit=commit)
        journal.add(cell)
        found[cell.model, cell.verb] = cell
        progress(cell)
        if time.monotonic() > end:
            break
    here = [cell for (spec, _), cell in found.items() if spec in {model.spec for model in networks}]
    total = summary(here)
    path = results.write(CLAIM, args.device, rows(networks, found, args.device), total, args, command=command(args))
    print(", ".join(f"{name} {value}" for name, value in total.items() if isinstance(value, int | float)))
    print(f"the matrix is in {path}")


if __name__ == "__main__":
    main()
