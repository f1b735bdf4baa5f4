"""Results files name commits of the history, and the code that they measure."""

import json
import runpy
import subprocess
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "results_age.py"))
FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_measured_code_exists(path: Path) -> None:
    assert [one for one in TOOL["measured"](path.name) if not (ROOT / one.removeprefix(":!")).exists()] == []


def test_every_list_has_a_results_file() -> None:
    decide = {max((one for one in TOOL["MEASURED"] if path.name.startswith(one)), key=len) for path in FILES}
    assert set(TOOL["MEASURED"]) == decide


@pytest.mark.skipif(git("rev-parse", "--is-shallow-repository") != "false", reason="needs the whole history")
def test_every_commit_is_in_the_history_and_was_clean() -> None:
    history = git("rev-list", "HEAD").split()
    strange = [
        (path.name, commit)
        for path in FILES
        for commit in TOOL["commits"](json.loads(path.read_text(encoding="utf-8")))
        if not any(one.startswith(commit) for one in history)
    ]
    assert strange == []


def test_runs_that_were_resumed_keep_their_commits() -> None:
    rows = [{"of_commit": "a"}, {}, {"of_commit": "b"}]
    document = {"provenance": {"commit": "c"}, "summary": {"commits": {"lenet5": "d"}}, "rows": rows}
    assert TOOL["commits"](document) == {"a", "b", "c", "d"}
    assert TOOL["commits"]({"provenance": {"commit": "c"}, "summary": {}, "rows": [{}]}) == {"c"}


def test_the_longest_name_decides() -> None:
    assert TOOL["measured"]("never_slower_fused_a.json") != TOOL["measured"]("never_slower_sparse_a.json")
    assert TOOL["measured"]("ladder_sparse_gemm_a.json") == TOOL["measured"]("sparse_gemm_a.json")
    with pytest.raises(LookupError, match="its code is not listed"):
        TOOL["measured"]("unknown_a.json")


def test_the_page_lists_every_file() -> None:
    age = TOOL["Age"]("one.json", "c0ffee0" * 5, "2026-01-02", ("a.py", "b.py"))
    assert "| one.json | 2026-01-02 | `c0ffee0c0ffe` | 2 |" in TOOL["page"]([age])


def test_shared_modules_count_that_the_measured_ones_import() -> None:
    common = "src/lamina/accelerate/common"
    shared = tuple(f"src/lamina/{one}/" for one in TOOL["KERNELS"])
    lists = (TOOL["measured"](name) for name in ("circulant_a", "fission_weights_a"))
    circulant, fission = (TOOL["imported"](paths, shared) for paths in lists)
    assert f"{common}/activations.py" in circulant - fission
    assert {f"{common}/__init__.py", f"{common}/operands.py", "src/lamina/accelerate/runtime/launch.py"} <= fission


def test_where_masks_are_from_makes_no_result_old(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = {}
    for blob, bits, about in (("1", [1, 2], "here"), ("2", [1, 2], "there"), ("3", [1, 3], "here")):
        file = BytesIO()
        np.savez_compressed(file, bits=np.array(bits), provenance=np.array(about))
        blobs[blob] = file.getvalue()
    monkeypatch.setitem(TOOL["code"].__wrapped__.__globals__, "git_bytes", lambda *words: blobs[words[-1]])
    first, second, third = (TOOL["code"].__wrapped__(blob, "masks.npz") for blob in blobs)
    assert first == second != third


def test_texts_make_no_result_old(monkeypatch: pytest.MonkeyPatch) -> None:
    python = '"""Module."""\ndef f(a):\n    """Text."""\n    return g(a, doc="Text.")  # why\n'
    cuda = "// Adds.\nint f(int a) {\n  return a + 1;  /* why\n*/ }\n"
    blobs = {
        "1": python, "2": python.replace("Text.", "Other.").replace("  # why", "\n"), "3": python.replace("a", "b"),
        "4": cuda, "5": cuda.replace("Adds", "Sums").replace(" {\n  ", "\n{"), "6": cuda.replace("1", "2"),
        "7": "f(help=1)", "8": "f(help=2)",
    }  # fmt: skip
    monkeypatch.setitem(TOOL["code"].__wrapped__.__globals__, "git", lambda *words: blobs[words[-1]])
    code = TOOL["code"]
    assert code("1", "a.py") == code("2", "a.py") != code("3", "a.py")
    assert code("7", "a.py") != code("8", "a.py"), "a value that is no text"
    assert code("4", "a.cu") == code("5", "a.cu") != code("6", "a.cu")
    assert code("1", "a.json") != code("2", "a.json"), "data has no texts"
    assert code("0" * 40, "a.py") != code("1", "a.py"), "one of them does not exist"
