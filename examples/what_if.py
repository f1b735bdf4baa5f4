"""Change a network to make it faster, and compare each speedup with its prediction.

Run: python examples/what_if.py
"""

import tempfile
from pathlib import Path

import torch

import lamina
from lamina.build import from_zoo
from lamina.build.models import ZOO, create
from lamina.explain.misses import miss
from lamina.pipeline.what_if import what_if
from lamina.spec import Workload
from lamina.store import open_store


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workload = Workload(batch=(8,), device=device, repeat=3)
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "lamina.db") as store:
        run = what_if(
            from_zoo(ZOO["lenet5"]),
            workload,
            store,
            cache=Path(folder),
            changes=["fusion", "without_activations", "precision", "cuda_graph"],
        )
        for one in store.what_ifs(run.id):
            if one.phase != "step":
                continue
            gains = [f"{gain:+.0%}" if gain is not None else "-" for gain in (one.predicted_gain, one.measured_gain)]
            print(f"{one.layer:13} {one.detail:58} predicted {gains[0]:>6} measured {gains[1]:>6} {miss(one)}")

    # lamina.convert applies a change that helps.
    model, record = lamina.convert(create("lenet5", None), lamina.Fusion())
    for layer in record.layers:
        print(f"{layer.layer:13} {layer.kind:30} {layer.refusal or 'fused'}")
    print(model(torch.zeros(1, 1, 28, 28)).shape)


if __name__ == "__main__":
    main()
