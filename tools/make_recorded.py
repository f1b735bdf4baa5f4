"""Rows of benchmarks/results that the package ships, for `lamina reproduce` on machines without a GPU.

Each extract has the columns and rows of one results file that the judging functions read, with the file's provenance.

Run: python tools/make_recorded.py          rewrites src/lamina/recipes/papers/recorded
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = ROOT / "src" / "lamina" / "recipes" / "papers" / "recorded"
DIGITS = 6
"""Significant digits of shipped values."""

Row = Mapping[str, Any]
BASIC = ("workload", "layer", "phase", "precision", "layout", "impl", "batch", "timing", "median_us")


SIMULATED = (
    "entry", "point", "layer", "median_us", "baseline_us", "speedup", "l2_transactions", "l2_hit_rate",
    "baseline_l2_hit_rate", "read_latency",
)  # fmt: skip

FISSION = (
    "entry", "point", "baseline_us", "speedup", "shared_bytes", "conversion_slots", "on_chip_use", "off_chip_use",
    "arithmetic_use", "conversion_use",
)  # fmt: skip


def every(row: Row) -> bool:
    return True


@dataclass(frozen=True)
class Extract:
    """Columns and rows of the newest results file of a claim. ``summary``: the path of the rows in its summary.

    ``optional``: it is shipped if there is such a file.
    """

    claim: str
    columns: tuple[str, ...]
    keep: Callable[[Row], bool] = every
    summary: tuple[str, ...] = ()
    optional: bool = False

    @property
    def found(self) -> list[Path]:
        """All results files of the claim."""
        return [path for path in RESULTS.glob(f"{self.claim}_*.json") if path.stem.rsplit("_", 2)[0] == self.claim]

    @property
    def source(self) -> Path:
        """The newest results file.

        Raises:
            LookupError: there is none.
        """
        if not (found := self.found):
            raise LookupError(f"expected a file benchmarks/results/{self.claim}_<device>_<date>.json")
        return max(found, key=lambda path: path.stem.rsplit("_", 1)[1])

    def document(self) -> dict[str, Any]:
        """The extract as it is shipped."""
        whole = json.loads(self.source.read_text(encoding="utf-8"))
        rows: Iterable[Row] = whole["rows"]
        if self.summary:
            found = whole["summary"]
            for key in self.summary:
                found = found[key]
            rows = found
        source = whole["provenance"]
        return {
            "source": f"benchmarks/results/{self.source.name}",
            "provenance": {
                **{name: source[name] for name in ("device", "date", "commit", "command")},
                "torch": source["versions"].get("torch", ""),
            },
            "columns": list(self.columns),
            "rows": [[short(row.get(name)) for name in self.columns] for row in rows if self.keep(row)],
        }


def short(value: Any) -> Any:
    """Floats to `DIGITS` significant digits, inside lists and tables too."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case list():
            return [short(one) for one in value]
        case dict():
            return {key: short(one) for key, one in value.items()}
        case _:
            return value


def strict(row: Row, **wanted: Any) -> bool:
    """Whether the columns have these values; several are given as a tuple."""
    return all(
        row.get(name) in value if isinstance(value, tuple) else row.get(name) == value for name, value in wanted.items()
    )


def _rungs(row: Row) -> bool:
    rung = row["impl"] == "dense" or any(f"rung={name}," in row["impl"] for name in ("as_written", "fusion"))
    return rung and strict(row, precision="fp32", phase="step", timing="graph")


LEARNT = ("workload", "block_size", "seed", "epochs", "parameters", "median_us", "test_accuracy", "train_loss")
NETWORKS = ("alexnet", "vgg11_cifar", "cifarnet", "cifarnet64")
ZEROS = ("workload", "impl", "batch", "iterations", "every", "pace", "densities", "sampled", "trend_apart")


def _watched(row: Row) -> bool:
    return "densities" in row and row["workload"] in NETWORKS


KNOWN: Mapping[str, Extract] = {
    "circulant_ladder": Extract("ladder_circulant", (*BASIC, "block_size"), _rungs),
    "circulant_counters": Extract(
        "ladder_circulant",
        (
            "layer", "block_size", "rung", "phase", "kernels", "time_us", "instructions", "read_sectors",
            "written_sectors", "static_instructions", "ipc", "eligible_warps", "occupancy_pct",
        ),
        lambda row: strict(row, kernels="own", rung=("as_written", "o1_sum", "o2_sum", "fusion")),
        ("counters", "rows"),
    ),
    "circulant_batches": Extract(
        "circulant_batches", (*BASIC, "block_size"), lambda row: strict(row, precision="fp32")
    ),
    "circulant_layers": Extract(
        "circulant_layers", (*BASIC, "times"), lambda row: strict(row, precision="fp32", phase="step", timing="graph")
    ),
    "circulant_recurrent": Extract(
        "circulant_recurrent", (*BASIC, "size"), lambda row: strict(row, precision="fp32", timing="graph")
    ),
    "circulant_accuracy": Extract("circulant_accuracy", LEARNT),
    "circulant_accuracy_vgg11": Extract("circulant_accuracy_vgg11_cifar10", LEARNT),
    "circulant_accuracy_vgg16": Extract("circulant_accuracy_vgg16_cifar10", LEARNT),
    "activation_zeros": Extract("sparse_training", ZEROS, _watched),
    "activation_zeros_long": Extract("sparse_training_long", ZEROS, _watched, optional=True),
    "monitor_overhead": Extract(
        "monitor_overhead", (*BASIC, "added", "iterations"), lambda row: strict(row, precision="fp32")
    ),
    "sparse_libraries": Extract(
        "sparse_gemm",
        (*BASIC, "pattern", "zeros", "what"),
        lambda row: strict(
            row, workload="cifarnet conv2", precision="fp32", pattern="iid", l2="warm",
            impl=("dense", "csr", "nonzero"),
        ),
    ),
    "elimination": Extract("elimination", BASIC, lambda row: strict(row, precision="fp32")),
    "deft_networks": Extract("deft_networks", BASIC, lambda row: strict(row, precision="fp32")),
    "on_chip_fission": Extract("fission_simt", (*BASIC, "tile", "format", "keep")),
    "what_if": Extract(
        "what_if_fp32",
        (*BASIC, "change", "detail", "measured_gain"),
        lambda row: row.get("change") == "without_activations" and row.get("measured_gain") is not None,
    ),
    "l1_bypass": Extract(
        "characterization",
        (*BASIC, "q1_us", "q3_us", "change", "detail", "l1", "measured_gain", "counters"),
        lambda row: row.get("change") == "l1_bypass",
    ),
    "multi_gpu": Extract("multi_gpu", (*BASIC, "gradient_bytes", "processes"), optional=True),
    "simulated_engine": Extract("published_figures", SIMULATED),
    "deft_front": Extract(
        "deft_front", ("workload", "impl", "thresholds", "accuracy", "chosen_accuracy", "reduction", "weights")
    ),
    "simulated_recorded": Extract(
        "published_recorded",
        (*SIMULATED, "workload", "batch", "pattern", "masks", "iteration", "matrix_density", "line_density"),
    ),
    "simulated_fission": Extract("published_fission", FISSION),
}  # fmt: skip

EXTRACTS = {name: one for name, one in KNOWN.items() if one.found or not one.optional}
"""All extracts that are shipped."""


def text(extract: Extract) -> str:
    """The file of an extract: one row a line."""
    document = extract.document()
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in document.pop("rows"))
    return json.dumps(document, indent=1)[:-2] + f',\n "rows": [\n{rows}\n]\n}}\n'


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, extract in EXTRACTS.items():
        (FOLDER / f"{name}.json").write_text(text(extract), encoding="utf-8")
