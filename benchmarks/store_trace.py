"""Claim: a trace of 100,000 kernels is imported in under 20 s, each standard query takes under 200 ms, its report is
written in under 10 s.

It is measured without counters, and with ten counters per kernel (a million in total). The trace is synthetic: 60
layers, three phases, four batch sizes, and kernel names as long as PyTorch's. It is also imported in the format of
torch.profiler, with an operator and a launch for each kernel.

Run: python -m benchmarks.store_trace
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import results
from lamina import measure
from lamina.pipeline import report
from lamina.pipeline.imports import import_file
from lamina.record import Counter, KernelRun, LayerRun, Run, Timing
from lamina.store import Store, open_store, parse_document

LAYERS, BATCHES, PHASES = 60, (16, 64, 128, 256), ("forward", "backward_data", "backward_weight")
KERNELS, METRICS, REPEATS = 100_000, 10, 9
LIMITS_S = {"import": 20.0, "query": 0.2, "report": 10.0}
RUN = "20260102-trace"
METRIC = "sm__inst_executed_pipe_{}.avg.pct_of_peak_sustained_active"
NAME = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float>, std::array<char*, 3ul>>(int, {})"
OPERATIONS = [f"CUDAFunctor_{number}{'_and_more' * (number % 12)}" for number in range(200)]

QUERIES = {
    "layer table": "SELECT * FROM layer_table WHERE run_id = '{run}'",
    "slowest launches": "SELECT layer, phase, kernel, duration_us FROM kernel_table WHERE run_id = '{run}' "
    "ORDER BY duration_us DESC LIMIT 20",
    "slowest kernels by name": "SELECT kernel, count(*), sum(duration_us) AS total FROM kernel_table "
    "WHERE run_id = '{run}' GROUP BY kernel ORDER BY total DESC LIMIT 20",
    "kernels of one layer": "SELECT * FROM kernel_table WHERE run_id = '{run}' AND layer = 'layer7'",
    "one kernel across runs": "SELECT run_id, count(*), avg(duration_us) FROM kernel_table WHERE kernel = '{kernel}' "
    "GROUP BY run_id",
    "runs by device": "SELECT run.id FROM run JOIN environment ON environment.id = environment_id "
    "WHERE device = 'a chip'",
    "one metric by layer and phase": "SELECT layer, phase, batch, avg(value) FROM counter_table "
    "WHERE run_id = '{run}' AND metric = '{metric}' GROUP BY layer, phase, batch",
    "one metric of every launch": "SELECT layer, phase, invocation, value FROM counter_table "
    "WHERE run_id = '{run}' AND metric = '{metric}'",
    "counters of one layer and phase": "SELECT * FROM counter_table WHERE run_id = '{run}' AND layer = 'layer7' "
    "AND phase = 'forward'",
}


def main() -> None:
    args = results.arguments("store_trace")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for metrics in (0, METRICS):
            rows += measured(metrics, Path(temporary))
    late = [f"{row['workload']}: {row['layer']}" for row in rows if row["median_us"] > 1e6 * LIMITS_S[row["kind"]]]
    summary = {f"{row['workload']}: {row['layer']}": f"{row['median_us'] / 1e3:,.1f} ms" for row in rows}
    summary["beyond the claim"] = "; ".join(late) or "none"
    path = results.write("store_trace", "cpu", rows, summary, args)
    print(path)
    for what, shown in summary.items():
        print(f"{what}: {shown}")


def measured(metrics: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Times of importing a trace in each format, and of each query on it."""
    workload = f"{KERNELS} kernels, {KERNELS * metrics} counters"
    launches = list(made_launches())
    counters = [
        Counter(one.key, one.invocation, METRIC.format(m), 1.5 * m, "%") for one in launches for m in range(metrics)
    ]

    def row(kind: str, what: str, seconds: list[float]) -> dict[str, Any]:
        q1, median, q3 = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        times = {"median_us": 1e6 * median, "q1_us": 1e6 * q1, "q3_us": 1e6 * q3, "n": len(seconds)}
        common: dict[str, Any] = {
            "workload": workload,
            "layer": what,
            "phase": "end_to_end",
            "precision": "fp64",
            "layout": "-",
        }
        common |= {"impl": "sqlite", "timing": "cpu", "l2": None, "rel_error": None, "unchecked": "computes nothing"}
        return {**common, "batch": 1, **times, "kind": kind}

    with open_store(folder / f"written{metrics}.db") as store, open_store(folder / f"imported{metrics}.db") as other:
        begin(store)
        yield row("import", "add_kernels", [seconds(lambda: store.add_kernels(RUN, launches))])
        if counters:
            yield row("import", "add_counters", [seconds(lambda: store.add_counters(RUN, counters))])
        text = json.dumps(store.export_run(RUN))
        yield row("import", "import_run of an exported file", [seconds(lambda: other.import_run(parse_document(text)))])
        yield row("import", "import_database", [seconds(lambda: fresh(folder, store))])
        if not metrics:
            trace = folder / "torch.json"
            trace.write_text(json.dumps({"traceEvents": list(made_events(launches))}))
            yield row("import", "import of a torch.profiler trace", [seconds(lambda: import_file(trace, other))])
        yield row("report", "report", [seconds(lambda: report(store, RUN, folder / "report.html"))])
        for what, sql in QUERIES.items():
            if metrics or "counter_table" not in sql:
                question = sql.format(run=RUN, kernel=launches[0].name, metric=METRIC.format(3))
                yield row("query", what, [seconds(lambda: other.query(question)) for _ in range(REPEATS)])  # noqa: B023


def fresh(folder: Path, store: Store) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place, open_store(Path(place) / "lamina.db") as empty:
        empty.import_database(store.place)


def seconds(call: Callable[[], object]) -> float:
    watch = measure.Stopwatch()
    call()
    return watch.seconds


def begin(store: Store) -> None:
    store.begin(
        Run(RUN, "profile", "made up", "python -m benchmarks.store_trace", "2026-01-02", "f", {}, {"device": "a chip"})
    )
    for layer in made_rows():
        store.add(RUN, layer)


def made_rows() -> Iterator[LayerRun]:
    timing = Timing("cupti", "warm", 100.0, 90.0, 110.0, 9)
    for place, batch, phase in product(range(LAYERS), BATCHES, PHASES):
        shape = (batch, 64, 56, 56)
        where = (f"layer{place}", "convolution", place, phase, "dense", "tf32", "nchw", batch, "a chip")
        yield LayerRun(*where, (shape,), shape, 36_864, 10**9, 10**7, "ok", timing=timing)


def made_launches() -> Iterator[KernelRun]:
    chance = random.Random(0)
    keys = [row.key for row in made_rows()]
    for number in range(KERNELS):
        operation = chance.choice(OPERATIONS)
        name = NAME.format(operation, operation)
        grid, us = (chance.randrange(1, 10_000), 1, 1), chance.lognormvariate(3, 1)
        yield KernelRun(keys[number % len(keys)], number // len(keys), name, grid, (128, 1, 1), 32, 0, us)


def made_events(launches: list[KernelRun]) -> Iterator[dict[str, Any]]:
    """An operator, a launch and a kernel for each."""
    for number, one in enumerate(launches):
        start, span = 100.0 * number, {"ph": "X", "pid": 9, "tid": 1}
        name = f"aten::{one.key.layer}"
        yield span | {"cat": "cpu_op", "name": name, "ts": start, "dur": 50.0, "args": {"Sequence number": number}}
        launched = {"correlation": number}
        yield span | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 1, "dur": 5.0, "args": launched}
        shape = {"grid": list(one.grid or ()), "block": list(one.block or ()), "registers per thread": one.registers}
        ran = {"tid": 7, "ts": start + 20, "dur": one.duration_us, "args": launched | shape | {"shared memory": 0}}
        yield span | {"cat": "kernel", "name": one.name} | ran


if __name__ == "__main__":
    main()
