"""Claim: if DRAM is not the bottleneck, a data fission unit with on-chip packing speeds up a product with 4 x 4 tiles,
which is bound by shared memory, but not with 8 x 8 tiles; and the analytical model predicts the time within 10 %.

AlexNet's second convolution (Caffe's, one of two groups) and its first fully connected layer, 16 images, simulated on a
Titan X (Pascal); each tile and conversion beside fp32, on a banked in-order memory and on one of the same bandwidth
without banks. Deterministic: the results do not depend on the machine.

Run: python -m benchmarks.fission_unit
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks import results
from lamina import recipes
from lamina.simulate.fission_unit import CONVERSIONS, FissionUnit, fission_unit, fully_connected, predict
from lamina.simulate.hierarchy import Device, preset
from lamina.simulate.workloads import ConvolutionGemm, convolutions
from lamina.spec import read

BATCH = 16
MEMORIES: dict[str, dict[str, Any]] = {
    "banked": {},
    "ideal": {"dram.mode": "ideal", "dram.cycles_per_line": 2.36},
}
OTHERS: tuple[dict[str, Any], ...] = (
    {"conversion": "dfu_cvt_16", "packed": "everywhere"},
    {"conversion": "dfu_cvt_8", "packed": "everywhere"},
    {"conversion": "deft-16q", "packed": "off-chip"},
    {"conversion": "ieee-half", "slow": "overlapped"},
    {"conversion": "deft-16q", "slow": "overlapped"},
)
"""Beside every conversion on chip, in serial."""
WITHIN = 0.10


def main() -> None:
    args = results.arguments("fission_unit")
    rows = [row for layer in layers() for memory in MEMORIES for row in simulated(layer, memory)]
    path = results.write("fission_unit", "cpu", rows, summary(rows), args)
    document = json.loads(path.read_text(encoding="utf-8"))
    print(path)
    for what, shown in document["summary"].items():
        print(f"{what}: {shown}")


def layers() -> Iterator[ConvolutionGemm]:
    resolved = tuple(read(recipes.find("models/alexnet").path)[0].resolve(BATCH))
    products = {each.layer: each for each in (*convolutions(resolved), *fully_connected(resolved))}
    yield replace(products["conv2"], groups=1)
    yield products["fc6"]


def simulated(layer: ConvolutionGemm, memory: str) -> Iterator[dict[str, Any]]:
    device = preset("titanx-pascal").changed(MEMORIES[memory])
    for tile in (4, 6, 8):
        base = 0.0
        for more in (*({"conversion": conversion} for conversion in CONVERSIONS), *OTHERS):
            row = one(layer, device, FissionUnit(tile=tile, **more))
            base = base or row["median_us"]
            yield row | {"memory": memory, "speedup": base / row["median_us"]}


def one(layer: ConvolutionGemm, device: Device, options: FissionUnit) -> dict[str, Any]:
    done, met = fission_unit(layer, device, options), options.on(device)
    expected = predict(layer.m, layer.n, layer.k, options, met)
    microseconds = done.cycles / device.clock_ghz / 1e3
    lanes = device.cu.count * device.cu.simds * 32
    chosen = options.model_dump(include={"tile", "conversion", "packed", "slow"})
    return {
        "workload": "alexnet",
        "layer": layer.layer,
        "phase": "forward",
        "precision": "fp32",
        "layout": "panels",
        "impl": f"fission_unit[{','.join(f'{key}={value}' for key, value in chosen.items())}]",
        "batch": BATCH,
        "timing": "simulated",
        "l2": "cold",
        "median_us": microseconds,
        "q1_us": microseconds,
        "q3_us": microseconds,
        "n": 1,
        "rel_error": None,
        "unchecked": "a simulation computes no values",
        **chosen,
        "cycles": done.cycles,
        "predicted_us": expected.cycles / device.clock_ghz / 1e3,
        "limit": expected.limit,
        "of_peak": layer.operations / 2 / lanes / done.cycles,
        "dram_bytes": done.counters["dram_bytes"],
        "shared_bytes": done.counters["shared_bytes"],
        "conversions": done.counters["conversions"],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, str]:
    found = {}
    for row in rows:
        if row["conversion"] != "fp32":
            what = (
                f"{row['layer']}, {row['memory']}, {row['tile']} x {row['tile']}, {row['conversion']}, {row['packed']}"
            )
            found[f"{what}, {row['slow']}"] = f"{row['speedup']:.2f} x"
    for memory in MEMORIES:
        off = [abs(row["predicted_us"] / row["median_us"] - 1) for row in rows if row["memory"] == memory]
        found[f"closed form, {memory}"] = f"median error {median(off):.1%}, worst {max(off):.1%}"
    found["beyond the claim"] = "; ".join(f"{row['layer']} {row['impl']}" for row in rows if beyond(row)) or "none"
    return found


def beyond(row: dict[str, Any]) -> bool:
    """Whether a row contradicts the claim."""
    if row["memory"] != "ideal":
        return False
    gained, of_unit = row["speedup"] > 1, row["conversion"].startswith("dfu") and row["packed"] == "on-chip"
    otherwise = of_unit and gained is not {4: True, 8: False}.get(row["tile"], gained)
    return otherwise or bool(abs(row["predicted_us"] / row["median_us"] - 1) > WITHIN)


if __name__ == "__main__":
    main()
