"""Explain what limits a stored run, and compare two of its batch sizes.

Run: python examples/explain_run.py
"""

import tempfile
from pathlib import Path

from lamina import explain, pipeline
from lamina.pipeline.explain import compare_layers, look_up
from lamina.pipeline.explain import explain as explained
from lamina.spec import Phase, Workload
from lamina.store import open_store


def main() -> None:
    target, _ = pipeline.find("lenet5")
    workload = Workload(batch=(8, 32), data="fashion-mnist", phases=tuple(Phase), repeat=5)
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "lamina.db") as store:
        run = pipeline.bench(target, workload, store, cache=Path(folder))
        done = explained(store, run.id)
        small, large = look_up(store, run.id, batch=8), look_up(store, run.id, batch=32)
    for paragraph in done.paragraphs[:3]:
        print(f"{paragraph.text}\n")
    for finding in done.findings[:5]:
        saving = explain.potential_saving(finding)
        print(f"{saving:6.1%} potential saving, {finding.confidence:.0%} confidence: {finding.claim}")
    pairs = compare_layers(small, large, per_item=True)
    print(f"\nan image at batch 32 against one at batch 8: {explain.overall(pairs):.2f}x")


if __name__ == "__main__":
    main()
