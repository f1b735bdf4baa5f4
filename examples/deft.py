"""Prune input channels of a trained network within an accuracy budget, save it, and load it again.

Run: python examples/deft.py
"""

import tempfile
from pathlib import Path

import torch

import lamina
from lamina import pipeline
from lamina.pipeline.deft.flow import deft
from lamina.pipeline.deft.records import DeftConfig
from lamina.spec.training import Training
from lamina.store import open_store


def main() -> None:
    target, _ = pipeline.find("lenet5")
    config = DeftConfig(keep_ratios=(0.5,), max_accuracy_drop=2.0, calibration=500, batch=16)
    with tempfile.TemporaryDirectory() as temporary, open_store(Path(temporary) / "lamina.db") as store:
        folder = Path(temporary) / "lenet5-deft"
        found = deft(target, "fashion-mnist", Training(epochs=2), store, folder, config, cache=Path(temporary))
        for layer in found.layers:
            error = "" if layer.error is None else f"error {layer.error:.1%}, "
            print(f"{layer.layer:13} {layer.kept:4} of {layer.inputs:4} inputs: {error}{layer.reason}")
        for network in (found.dense, found.result):
            print(f"{network.name:6} {network.test_accuracy:.1f} % in {network.latency.median_us:.0f} us")

        # Weights and a recipe, no code: the loaded network computes bitwise what was saved.
        model = lamina.load(folder)
        print(sorted(path.name for path in folder.iterdir()))
        print(model(torch.zeros(1, 1, 28, 28)).shape)


if __name__ == "__main__":
    main()
