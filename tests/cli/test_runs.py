"""lamina runs: kernels of a run, and runs from elsewhere."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from lamina.recipes import recordings
from lamina.record import KernelRun, LayerRun, Run, SimRun, Sparsity, Timing, WhatIf
from lamina.store import open_store

Lamina = Callable[..., Result]

TIMING = Timing("cupti", "warm", 10.0, 9.0, 11.0, 9)
ROWS = [
    LayerRun(
        *(name, "linear", place, "forward", "dense", "tf32", "nchw", 2, "cuda"),
        *(((2, 3),), (2, 4), 12, 24, 80, "ok"),
        timing=TIMING,
    )
    for place, name in enumerate(("fc1", "fc2"))
]
GEMM = KernelRun(ROWS[0].key, 0, 'gemm<"a", b>', (7, 2, 1), (128, 1, 1), 96, 4096, 8.5)
FILL = KernelRun(ROWS[1].key, 0, "Memset", None, None, None, None, 1.5)


@pytest.fixture
def profiled(lamina: Lamina, tmp_path: Path) -> Lamina:
    """The command line beside a store with one run of two kernels."""
    with open_store(tmp_path / "lamina.db") as store:
        store.begin(Run("20260102-abc", "profile", "mlp", "lamina profile mlp", "2026-01-02", "f", {}, {"device": "x"}))
        for row in ROWS:
            store.add("20260102-abc", row)
        store.add_kernels("20260102-abc", [GEMM, FILL])
    return lamina


def table(result: Result) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_kernels_are_listed(profiled: Lamina) -> None:
    first, second = table(profiled("runs", "show", "--kernels"))
    assert first == {
        "layer": "fc1", "phase": "forward", "impl": "dense", "precision": "tf32", "layout": "nchw", "batch": "2",
        "invocation": "0", "name": 'gemm<"a", b>', "grid": "7x2x1", "block": "128x1x1", "registers": "96",
        "shared_bytes": "4096", "duration_us": "8.5",
    }  # fmt: skip
    assert (second["name"], second["grid"], second["block"], second["registers"]) == ("Memset", "", "", "")


def test_kernels_of_one_layer(profiled: Lamina) -> None:
    assert [line["name"] for line in table(profiled("runs", "show", "latest", "--kernels", "--layer", "fc2"))] == [
        "Memset"
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--layer", "fc2"), "--kernels"), (("--kernels", "--layer", "fc3"), "did you mean 'fc2'|did you mean 'fc1'")],
)
def test_a_wrong_layer_is_refused(profiled: Lamina, words: tuple[str, ...], message: str) -> None:
    result = profiled("runs", "show", *words)
    assert result.exit_code == 2
    assert any(one in result.stderr for one in message.split("|"))


def test_a_verb_without_runs_is_told_with_those_that_have_some(profiled: Lamina) -> None:
    result = profiled("runs", "ls", "--verb", "profil")
    assert result.exit_code == 2 and "has no run of 'profil': did you mean 'profile'?" in result.stderr
    assert len(table(profiled("runs", "ls", "--verb", "profile", "--format", "csv"))) == 1


def test_another_database_and_a_compressed_trace_are_imported(profiled: Lamina, tmp_path: Path) -> None:
    packed = tmp_path / "trace.json.gz"
    assert profiled("runs", "export", "--format", "trace", "-o", str(packed)).exit_code == 0
    document = json.loads(gzip.decompress(packed.read_bytes()))
    for number, file in enumerate((packed, tmp_path / "lamina.db")):
        elsewhere = tmp_path / f"elsewhere{number}.db"
        result = profiled("runs", "import", str(file), "--store", str(elsewhere))
        assert (result.exit_code, result.stdout) == (0, "20260102-abc\n")
        with open_store(elsewhere) as store:
            assert store.export_run("20260102-abc") == document


def test_a_database_that_is_none_is_refused(profiled: Lamina, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("layer,median_us\n" * 100)
    result = profiled("runs", "import", str(tmp_path / "other.db"))
    assert result.exit_code == 2
    assert "other.db is not a database" in result.stderr


def test_a_recording_is_imported_by_name(lamina: Lamina) -> None:
    listed = lamina("runs", "recordings").stdout.split()
    assert listed == [*recordings.names()]
    assert lamina("runs", "import", "gpt2_block").exit_code == 0
    document = json.loads(lamina("explain", "latest", "--format", "json").stdout)
    assert document["target"] == "gpt2_block" and document["paragraphs"]
    again = lamina("runs", "import", "gpt2_block_nvidia-h200")
    assert again.exit_code == 2 and "already" in again.stderr


def test_a_run_shows_what_it_holds_whatever_its_verb(lamina: Lamina, tmp_path: Path) -> None:
    with open_store(tmp_path / "lamina.db") as store:
        for verb in ("sweep", "sparsity", "what-if", "train"):
            store.begin(Run(verb, verb, "net", f"lamina {verb} net", "2026-01-02", "f", {}, {"device": "x"}))
        for size, cycles in ((1024, 2000), (2048, 1000)):
            config = {"gemm": "1x[8,8,8]", "kernel": "shipped", "layer": "conv1", "l2.bytes": size, "unit": "dense"}
            store.add_simulation("sweep", SimRun("conv1", "gemm[8,8,8]", "tiny", config, cycles, {"l2_hits": 7}))
        store.add_sparsity(
            "sparsity", [Sparsity("relu1", "output", at, density) for at, density in ((0, 0.5), (9, 0.25))]
        )
        change = ("fusion", "bias + relu", "fc1", "forward", "fp32", 2)
        store.add_what_if("what-if", WhatIf(*change, TIMING, 8.0, "bytes saved", TIMING))
    sweep = lamina("runs", "show", "sweep").stdout
    assert "l2.bytes" in sweep and "2,000" in sweep and "unit" not in sweep  # what differs is shown
    (first, _) = table(lamina("runs", "show", "sweep", "--format", "csv"))
    assert (first["kernel"], first["cycles"], first["l2_hits"], first["unit"]) == ("gemm[8,8,8]", "2000", "7", "dense")
    zeros = lamina("runs", "show", "sparsity").stdout
    assert "relu1" in zeros and "0.250" in zeros and "0.500" in zeros
    assert [row["density"] for row in table(lamina("runs", "show", "sparsity", "--format", "csv"))] == ["0.5", "0.25"]
    assert "bias + relu" in lamina("runs", "show", "what-if").stdout
    nothing = lamina("runs", "show", "train")
    assert nothing.exit_code == 0 and nothing.stdout == "" and "holds nothing" in nothing.stderr


def test_a_run_without_layers_is_exported_whole_only(lamina: Lamina, tmp_path: Path) -> None:
    with open_store(tmp_path / "lamina.db") as store:
        store.begin(Run("abc", "simulate", "net", "lamina simulate run net", "2026-01-02", "f", {}, {"device": "x"}))
        store.add_simulation("abc", SimRun("conv1", "gemm[8,8,8]", "tiny", {}, 2000, {}))
    output = tmp_path / "new" / "run"
    for form in ("csv", "json", "parquet"):
        refused = lamina("runs", "export", "abc", "--format", form, "-o", str(output))
        assert refused.exit_code == 2 and "run abc (simulate) has simulated kernels" in refused.stderr
        assert "lamina runs show abc" in refused.stderr and "--format trace" in refused.stderr
    assert not output.parent.exists()
    assert json.loads(lamina("runs", "export", "abc", "--format", "trace").stdout)["run"]["id"] == "abc"


def test_the_title_holds_the_settings_that_all_rows_share(profiled: Lamina) -> None:
    assert "mlp, dense tf32 nchw batch 2, on x (run 20260102-abc)" in profiled("runs", "show").stdout
