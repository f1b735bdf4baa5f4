"""How soon a command answers: by the modules that it imports, since times depend on the machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lamina.build.convolution import ALGORITHMS
from lamina.build.data import DATASETS
from lamina.measure import clocks
from lamina.pipeline.what_if import CHANGES
from lamina.record.what_if import CHANGES as KNOWN_CHANGES
from lamina.spec import CLOCKS, DENSE_ALGORITHMS
from lamina.spec import DATASETS as KNOWN_DATASETS

SLOW = ("torch", "torch._dynamo", "triton", "sqlalchemy", "plotly", "matplotlib", "numba", "jinja2", "sympy", "timm")
LISTED: list[tuple[str, ...]] = [
    ("--help",),
    ("bench", "--help"),
    ("bench", "lenet5", "--dry-run"),
    ("bench", "resnet152", "--dry-run", "--format", "json"),
    ("bench", "models/lenet5", "--dry-run"),
    ("models",),
    ("methods",),
    ("recipes", "ls"),
    ("reproduce", "ls"),
]
WRONG = [
    ("--layout", "chw", "did you mean 'nchw'"),
    ("--precision", "fp3", "did you mean 'fp32'"),
    ("--phase", "backward", "did you mean 'backward_data'"),
    ("--impl", "circulent", "did you mean 'circulant'"),
    ("--impl", "dense:winogard", "did you mean 'winograd'"),
    ("--impl", "circulant[size=64]", "option 'size' is unknown"),
    ("--impl", "circulant[block_size=1]", "block_size"),
    ("--clock", "event", "did you mean 'events'"),
    ("--l2", "hot", "expected one of: cold, warm"),
    ("--data", "fashion-mnits", "did you mean 'fashion-mnist'"),
    ("--device", "cude", "did you mean 'cuda'"),
    ("--batch-size", "zero", "positive whole numbers"),
    ("--input-size", "3x", "such as 3x224x224"),
    ("--format", "xml", "--format"),
]


Answer = tuple[int, str, str]

_RUN = f"""
import json, sys
from typer.testing import CliRunner
from lamina.cli import app
answers = []
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, words)
    answers.append((result.exit_code, result.stdout, result.stderr))
print(json.dumps([answers, sorted({set(SLOW)!r} & sys.modules.keys())]))
"""


def run(commands: list[tuple[str, ...]], folder: Path) -> tuple[list[Answer], list[str]]:
    """Run commands in a new process: exit code, stdout and stderr of each, and the slow packages that were imported."""
    places = {"LAMINA_DB": str(folder / "lamina.db"), "LAMINA_CACHE_DIR": str(folder)}
    words = [sys.executable, "-c", _RUN, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **places})
    answers, imported = json.loads(done.stdout)
    return [tuple(answer) for answer in answers], imported


def test_what_is_listed_needs_no_slow_package(tmp_path: Path) -> None:
    answers, imported = run(LISTED, tmp_path)
    for words, (code, out, error) in zip(LISTED, answers, strict=True):
        assert code == 0 and out, (words, error)
    assert imported == []


def test_a_wrong_option_is_refused_before_slow_imports(tmp_path: Path) -> None:
    answers, imported = run([("bench", "lenet5", option, value) for option, value, _ in WRONG], tmp_path)
    for (option, value, expected), (code, _, error) in zip(WRONG, answers, strict=True):
        message = " ".join(error.split())
        assert code == 2 and expected in message, (option, value, message)
    assert imported == []


def test_wrong_changes_and_counters_are_refused_before_slow_imports(tmp_path: Path) -> None:
    cases = [
        ("what-if", "--change", "fuse", "did you mean 'fusion'"),
        ("profile", "--counters", "cores", "did you mean 'core'"),
        ("profile", "--counters", "core,dram__sectors_reads.sum", "did you mean 'dram__sectors_read.sum'"),
    ]
    answers, imported = run([(command, "lenet5", option, value) for command, option, value, _ in cases], tmp_path)
    for (*_, expected), (code, _, error) in zip(cases, answers, strict=True):
        assert code == 2 and expected in " ".join(error.split()), (expected, error)
    assert imported == []


def test_unknown_networks_data_sets_and_devices_are_refused_before_slow_imports(tmp_path: Path) -> None:
    cases = [
        ((command, *words), expected)
        for command in ("bench", "profile", "what-if", "train", "sparsity", "deft")
        for words, expected in (
            (("lenet6", "--data", "fashion-mnist"), "did you mean 'lenet5'"),
            (("lenet5", "--data", "fashion-mnist", "--device", "cude"), "did you mean 'cuda'"),
            (("lenet5", "--data", "fashion-mnits"), "did you mean 'fashion-mnist'"),
        )
    ]
    answers, imported = run([words for words, _ in cases], tmp_path)
    for (words, expected), (code, _, error) in zip(cases, answers, strict=True):
        assert code == 2 and expected in error, (words, error)
    assert imported == []


def test_imports_that_take_long_are_announced(tmp_path: Path) -> None:
    ((code, _, error),), imported = run([("bench", "lenet5", "--memory")], tmp_path)
    assert code == 0 and "torch" in imported and error.startswith("importing PyTorch")


def test_lists_that_need_no_imports_are_those_of_the_implementations() -> None:
    assert tuple(CHANGES) == KNOWN_CHANGES
    assert set(CLOCKS) == clocks._CUDA.keys() | clocks._CPU.keys()
    assert set(KNOWN_DATASETS) == DATASETS.keys()
    assert set(DENSE_ALGORITHMS) == ALGORITHMS.keys()
