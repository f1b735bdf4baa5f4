"""The benchmark of several GPUs, in small sizes on the CPU."""

import json
import sys
from pathlib import Path

import pytest
from tests import forked

from benchmarks import multi_gpu, results
from lamina.measure import collectives


def test_a_smoke_run_has_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["multi_gpu", "--smoke", "--output", str(tmp_path)])
    for module in (multi_gpu, collectives):
        monkeypatch.setattr(module, "spawn", forked.spawn)
    multi_gpu.main()
    (path,) = tmp_path.glob("multi_gpu_*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = results.Results.model_validate(document).model_dump()["rows"]
    assert {(row["workload"], row["layer"]) for row in rows} == {("layer A", "allreduce"), ("lenet5", "step")}
    layer = {row["impl"]: row["gradient_bytes"] for row in rows if row["layer"] == "allreduce"}
    assert layer == {"dense": 4 * 512 * 256, "circulant[block_size=8]": 4 * 512 * 256 // 8}
    (ours,) = (row for row in rows if row["layer"] == "step" and row["impl"] != "dense")
    assert ours["layers_replaced"] == 3
    assert len(document["summary"]) == 2 and all("bytes of gradients" in one for one in document["summary"].values())
