"""What is fuzzed: each parser and importer as a function of bytes, with valid inputs to start from.

Modules are imported within functions, so that the fuzzer can instrument them.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SMALL = 20_000
"""Bytes of a valid file that is worth mutating."""
ROOT = Path(__file__).parents[2]
RECIPES, DATA = ROOT / "src" / "lamina" / "recipes", ROOT / "tests" / "measure" / "counters" / "data"

Call = Callable[[bytes], object]


@dataclass(frozen=True)
class Fuzzed:
    """A parser: how to make the function, and the valid inputs."""

    make: Callable[[], Call]
    seeds: Callable[[], list[bytes]]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


def _files(*patterns: str) -> list[bytes]:
    found = [path for pattern in patterns for path in RECIPES.rglob(pattern)]
    found = [path for path in found if "papers/" not in str(path) or path.suffix != ".toml"]
    return [path.read_bytes() for path in found if path.stat().st_size < SMALL]


def _dnnmark() -> Call:
    from lamina.spec.dnnmark import read_dnnmark

    return lambda data: read_dnnmark(_text(data), "fuzzed", {"N": "2"})


def _toml() -> Call:
    from lamina.spec.toml import read_toml

    return lambda data: read_toml(_text(data), "fuzzed")


def _method() -> Call:
    from lamina.accelerate.registry import CELLS, configuration
    from lamina.spec.method import Method

    def call(data: bytes) -> None:
        method = Method.parse(_text(data))
        if method.name in CELLS:
            configuration(method)

    return call


def _input() -> Call:
    from lamina.cli import options

    return lambda data: options.inputs("", [_text(data)], "")


def _grid() -> Call:
    from lamina.spec.grid import parse_grid

    def call(data: bytes) -> None:
        grid = parse_grid(_text(data), "fuzzed")
        for _, configuration in zip(range(20), grid.configurations(), strict=False):
            assert configuration is not None

    return call


def _plan() -> Call:
    from lamina.spec.plan_file import parse_plan, plan_text

    def call(data: bytes) -> None:
        text = plan_text(parse_plan(_text(data), "fuzzed"))
        assert plan_text(parse_plan(text, "written")) == text

    return call


def _recipe() -> Call:
    from lamina.pipeline.deft.recipe_files import RECIPE, read_recipe

    folder = Path(tempfile.mkdtemp(prefix="lamina-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))

    def call(data: bytes) -> None:
        (folder / RECIPE).write_bytes(data)
        read_recipe(folder)

    return call


def _run_document() -> Call:
    from lamina.store import open_store, parse_document

    store = open_store(":memory:")

    def call(data: bytes) -> None:
        store.delete(store.import_run(parse_document(_text(data))))

    return call


def _packed() -> Call:
    from lamina.pipeline.imports import content_of

    return _on_a_file(content_of)


def _ncu() -> Call:
    from lamina.measure import recorded

    return lambda data: recorded.from_ncu_csv(_text(data), data, "fuzzed")


def _trace() -> Call:
    from lamina.errors import SpecError
    from lamina.measure import recorded

    def call(data: bytes) -> None:
        document = recorded.load(data, "fuzzed")
        if not recorded.looks_like_trace(document):
            raise SpecError("fuzzed", "no trace")
        recorded.from_torch_trace(document, data, "fuzzed")

    return call


def _idx() -> Call:
    from lamina.build.data import idx

    read = _on_a_file(idx.content)
    return lambda data: idx.parse(read(data), "fuzzed")  # type: ignore[arg-type]


def _npz() -> Call:
    from lamina.build.data import arrays

    def read(path: Path) -> None:
        for split in arrays.splits(path):
            arrays.read(path, split)

    return _on_a_file(read)


def _on_a_file(read: Callable[[Path], object]) -> Call:
    folder = Path(tempfile.mkdtemp(prefix="lamina-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))

    def call(data: bytes) -> object:
        (folder / "file").write_bytes(data)
        return read(folder / "file")

    return call


def _npz_seeds() -> list[bytes]:
    import numpy as np

    found = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        images, labels = np.zeros((2, 4, 4), np.uint8), np.arange(2)
        save(buffer, x_train=images, y_train=labels, x_test=images, y_test=labels)
        found.append(buffer.getvalue())
    return found


def _run_seeds() -> list[bytes]:
    from lamina.record import Epoch, LayerRun, Run, Timing
    from lamina.store import open_store

    with open_store(":memory:") as store:
        store.begin(Run("a", "bench", "n", "lamina bench n", "2026-01-02T03:04:05+00:00", "f", {}, {"device": "chip"}))
        where = ("fc", "linear", 0, "forward", "dense", "fp32", "nchw", 2, "cpu")
        timing = Timing("cpu", "-", 2.0, 1.0, 3.0, 5)
        store.add("a", LayerRun(*where, ((2, 3),), (2, 4), 12, 48, 96, "ok", timing=timing))
        store.add_epoch("a", Epoch(0, 4, 0.1, 2.0, 0.5, 2.1, 0.4, 1.0))
        return [json.dumps(store.export_run("a")).encode()]


PLAN = b"""version = 1
network = "lenet5"
goal = "infer"
batch = 2
[run]
precision = "bf16"
layout = "nhwc"
mode = "compiled"
[[layers]]
name = "classifier.0"
type = "Linear(400, 120, bias=True)"
method = "circulant[block_size=8]"
"""
GRID = b"""verb = "bench"
filter = ["batch_size * 3 < 1000", "batch_size != 4 or precision == 'fp32'"]
seeds = [0, 1]
[base]
model = "lenet5"
[axes]
batch_size = [1, 2, 4]
[[zip]]
precision = ["fp32", "bf16"]
layout = ["nchw", "nhwc"]
"""
RECIPE = (
    b'{"format": "lamina-deft", "version": 1, "network": {"source": "lenet5", "classes": 10, "description": null},'
    b' "precision": "fp32", "layers": {}, "facts": {}}'
)
METHODS = [
    *(b"dense", b"circulant[block_size=64,bias=true]", b"dense:winograd"),
    *(b"sparse[keep=0.5]", b"weight_only[format=int8]"),
]
INPUTS = [b"tokens=int64[0,1000]:128", b"x=float32:3x32x32", b"z=complex64:64", b"m=bool:7"]
IDX = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(6)])

TARGETS = {
    "dnnmark": Fuzzed(_dnnmark, lambda: _files("*.dnnmark", "*.dnntemplate")),
    "toml": Fuzzed(_toml, lambda: _files("*.toml")),
    "method": Fuzzed(_method, lambda: METHODS),
    "input": Fuzzed(_input, lambda: INPUTS),
    "grid": Fuzzed(_grid, lambda: [GRID]),
    "plan": Fuzzed(_plan, lambda: [PLAN]),
    "recipe": Fuzzed(_recipe, lambda: [RECIPE]),
    "run": Fuzzed(_run_document, _run_seeds),
    "packed": Fuzzed(_packed, lambda: [gzip.compress(b"{}"), b"{}", lzma.compress(b"[]")]),
    "ncu": Fuzzed(_ncu, lambda: [path.read_bytes()[:SMALL] for path in DATA.glob("*.csv")]),
    "trace": Fuzzed(_trace, lambda: [_trace_seed()]),
    "idx": Fuzzed(_idx, lambda: [IDX, gzip.compress(IDX)]),
    "npz": Fuzzed(_npz, _npz_seeds),
}


def _trace_seed() -> bytes:
    """An operator that launches two kernels, within a layer's range."""
    span = {"ph": "X", "pid": 9, "tid": 1}
    kernel = {"grid": [2, 1, 1], "block": [32, 1, 1], "registers per thread": 8, "shared memory": 0, "device": 0}
    events = [
        span | {"cat": "user_annotation", "name": "fc forward", "ts": 1.0, "dur": 90.0},
        span | {"cat": "cpu_op", "name": "aten::mm", "ts": 2.0, "dur": 50.0, "args": {"Sequence number": 1}},
    ]
    for at in (1, 2):
        launched = {"correlation": at}
        events.append(
            span | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3.0 + at, "dur": 1.0, "args": launched}
        )
        events.append(
            span | {"cat": "kernel", "name": "gemm", "tid": 7, "ts": 10.0 * at, "dur": 5.0, "args": launched | kernel}
        )
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "chip"}]}
    return json.dumps(header | {"traceEvents": events}).encode()
