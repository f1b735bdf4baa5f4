"""Claim: a training step of AlexNet is at least 4 % faster with fused layers, and predictions of changes are accurate.

1. The whole step at batch 128, in one precision, with convolutions and linear layers fused with their bias,
   activation and pooling, beside the step as it is, the library's algorithms chosen by timing; and the published
   upper bound, the activations removed.
2. Every other what-if, that choice by timing among them: its predicted gain beside the measured one.
   Predictions come from a profile with the counters of ``core``.

Run: python -m benchmarks.what_if tf32
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.profiles import profiled
from lamina import build
from lamina.build.models import ZOO
from lamina.cli.again import Again
from lamina.explain.misses import TOLERATED, gain_error, miss
from lamina.pipeline.what_if import TUNED, what_if
from lamina.record import Timing, WhatIf
from lamina.spec import Workload
from lamina.store import open_store

BATCH = 128
PRECISIONS = ("tf32", "bf16", "fp32")
NEEDED_GAIN = 0.04


def main() -> None:
    args = results.arguments("what_if", precision=PRECISIONS)
    target = build.from_zoo(ZOO["alexnet"])
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/lamina.db") as store:
        profiled("alexnet", (BATCH,), "core", Path(folder, "lamina.db"), Path(folder), args.precision, autotune=True)
        workload = Workload(batch=(BATCH,), precision=(args.precision,), device="cuda", seconds=0.3)
        again = Again("alexnet", workload, TUNED, (), "")
        watch = partial(print, flush=True)
        run = what_if(
            target, workload, store, cache=Path(folder), profile="latest", elsewhere=again.profile, watch=watch
        )
        found = store.what_ifs(run.id)
    rows = [row for one in found for row in documents(one)]
    summary = judged(found)
    command = f"what_if {args.precision}"
    print(results.write(f"what_if_{args.precision}", "cuda", rows, summary, args, command))
    print(json.dumps(summary, indent=1))


def documents(one: WhatIf) -> list[dict[str, Any]]:
    """The row before a change and, if it was executed, the row after it."""
    error = gain_error(one)
    common = {
        "workload": "alexnet",
        "layer": one.layer,
        "phase": one.phase,
        "layout": "nchw",
        "batch": one.batch,
        "change": one.change,
        "detail": one.detail,
        "predicted_us": one.predicted_us,
        "predicted_gain": one.predicted_gain,
        "measured_gain": one.measured_gain,
        "gain_error": error if error is not None and abs(error) != float("inf") else None,
        "rule": one.rule,
        "miss": miss(one),
    }
    unchanged = {
        "impl": "dense",
        "precision": one.precision,
        "rel_error": None,
        "unchecked": "what the change starts from",
    }
    made = [common | unchanged | times(one.before)]
    if one.after:
        changed = {"impl": f"{one.change}[{one.detail}]", "precision": one.precision, "rel_error": one.rel_error}
        if one.change == "precision":
            changed["precision"] = one.detail.rpartition(" ")[2]
        if one.change == "channels_last":
            changed["layout"] = "nhwc"
        if one.rel_error is None:
            changed["unchecked"] = unchecked(one)
        made.append(common | changed | times(one.after))
    return made


def unchecked(one: WhatIf) -> str:
    """The reason why a changed time has no error."""
    if one.change == "without_activations":
        return "an upper bound that computes something else"
    if one.change == "cuda_graph":
        return "the same kernels, replayed"
    return "the sum of checked layers" if one.phase == "step" else "random: dropout"


def times(timing: Timing) -> dict[str, Any]:
    return {
        "timing": timing.clock,
        "l2": None if timing.l2 == "-" else timing.l2,
        **results.quartiles(timing),
    }


def judged(found: tuple[WhatIf, ...]) -> dict[str, Any]:
    """The gains of the whole step, and the number of accurate predictions."""
    whole = [one for one in found if one.layer == "alexnet"]
    gains = {
        f"{one.change}: {one.detail}": round(one.measured_gain, 4) for one in whole if one.measured_gain is not None
    }
    fused = [one.measured_gain for one in whole if one.change == "fusion" and one.measured_gain is not None]
    errors = [error for one in found if (error := gain_error(one)) is not None]
    return {
        "gains_of_the_whole_step": gains,
        "best_fused_gain": round(max(fused), 4) if fused else None,
        "as_claimed": max(fused, default=0.0) >= NEEDED_GAIN,
        "predictions": len(errors),
        "within_25_percent_or_the_spread": sum(abs(error) <= TOLERATED for error in errors),
        "not_executed": {f"{one.change}: {one.detail}, {one.layer}": one.reason for one in found if one.after is None},
    }


if __name__ == "__main__":
    main()
