"""Measure a network layer by layer, and list the phases that take most of the step.

Run: python examples/bench_layers.py
"""

import tempfile
from pathlib import Path

from lamina import explain, pipeline
from lamina.spec import Phase, Workload
from lamina.store import open_store


def main() -> None:
    target, _ = pipeline.find("lenet5")
    workload = Workload(batch=(16,), data="fashion-mnist", phases=tuple(Phase), repeat=5)
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "lamina.db") as store:
        run = pipeline.bench(target, workload, store, cache=Path(folder))
        rows = store.layers(run.id)
        share = explain.shares(rows)
        for row in sorted(share, key=lambda row: -share[row])[:5]:
            print(f"{row.layer:14} {row.phase:16} {row.timing.median_us:9.1f} us  {share[row]:5.1%}")
        for finding in explain.findings(rows, store.roofs(run.id)[0]):
            print(f"- {finding.claim}")


if __name__ == "__main__":
    main()
